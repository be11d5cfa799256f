"""ListTransactions v0-v2. v1: filter by duration. v2: by a pattern of the transactional id.

Of what this broker coordinates.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env import Clock
from suwi.group.regular_expressions import InvalidRegularExpression, compile_regex
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, in_slices, list_in_slices
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from suwi.wire.encoder import EncodedItems
from suwi.wire.primitives import string

_DURATION_FROM: Final = 1
_PATTERN_FROM: Final = 2
_STATES: Final = {state.label: state for state in TransactionState}

Filter = Callable[[str, TransactionLogValue], bool]


class ListTransactions:
    def __init__(self, transactions: CoordinatorRuntime, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._answer(request))

    def _answer(self, request: Request) -> Sliced:
        unknown: list[bytes] = []
        states: set[TransactionState] = set()
        for number, name in enumerate(request.message.state_filters, 1):
            if name in _STATES:
                states.add(_STATES[name])
            else:
                unknown.append(string(name, True))  # All versions are flexible.
            if number % SLICE_PARTITIONS == 0:
                yield
        producer_ids: set[int] = set()
        for number, producer_id in enumerate(request.message.producer_id_filters, 1):
            producer_ids.add(producer_id)
            if number % SLICE_PARTITIONS == 0:
                yield
        error = ErrorCode.none
        listed: Iterable[dict[str, Any] | None] = ()
        try:
            is_listed = self._filter(request, states, producer_ids)
        except InvalidRegularExpression:
            error = ErrorCode.invalid_regular_expression
        else:
            if self._transactions.is_loading:
                error = ErrorCode.coordinator_load_in_progress
            else:
                listed = self._list(is_listed)
        fields = {
            "error_code": error,
            "unknown_state_filters": EncodedItems(len(unknown), b"".join(unknown)),
        }
        return (yield from list_in_slices(request, "transaction_states", listed, fields))

    def _list(self, is_listed: Filter) -> Iterator[dict[str, Any] | None]:
        machines = [shard.machine for shard in self._transactions.active()]
        for machine in machines:
            for transactional_id in list(machine.transactions):
                metadata = machine.transactions.get(transactional_id)
                if metadata is None or not is_listed(transactional_id, metadata):
                    yield None
                    continue
                yield {
                    "transactional_id": transactional_id,
                    "producer_id": metadata.producer_id,
                    "transaction_state": metadata.state.label,
                }

    def _filter(
        self, request: Request, states: Collection[TransactionState], producer_ids: Collection[int]
    ) -> Filter:
        """Raises InvalidRegularExpression."""
        asked, version = request.message, request.version
        duration_ms = asked.duration_filter if version >= _DURATION_FROM else -1
        pattern = asked.transactional_id_pattern if version >= _PATTERN_FROM else None
        regex = compile_regex(pattern) if pattern else None
        begun_before_ms = self._clock.now_ms() - duration_ms

        def is_listed(transactional_id: str, metadata: TransactionLogValue) -> bool:
            if asked.state_filters and metadata.state not in states:
                return False
            if producer_ids and metadata.producer_id not in producer_ids:
                return False
            if duration_ms >= 0 and metadata.start_ms >= begun_before_ms:
                return False
            return regex is None or regex.fullmatch(transactional_id) is not None

        return is_listed
