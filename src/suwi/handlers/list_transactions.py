"""ListTransactions v0-v2. v1: filter by duration. v2: by a pattern of the transactional id.

Of what this broker coordinates.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env import Clock
from suwi.group.regular_expressions import (
    COST_PER_SLICE,
    InvalidRegularExpression,
    Regex,
    compile_regex,
)
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, SlicedItems, in_slices
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from suwi.wire.encoder import EncodedItems
from suwi.wire.primitives import compact_string

_DURATION_FROM: Final = 1
_PATTERN_FROM: Final = 2
_STATES: Final = {state.label: state for state in TransactionState}

_FILTERS_AT_ONCE: Final = 500
_ITEM_COST: Final = COST_PER_SLICE // SLICE_PARTITIONS


class ListTransactions:
    def __init__(self, transactions: CoordinatorRuntime, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._listing(request))

    def _listing(self, request: Request) -> Sliced:
        unknown = yield from _unknown_states(request)
        error = ErrorCode.none
        found: list[dict[str, Any]] | EncodedItems = []
        if self._transactions.is_loading:
            error = ErrorCode.coordinator_load_in_progress
        try:
            pattern = _pattern(request)
            if error is ErrorCode.none:
                found = yield from self._list(request, pattern)
        except InvalidRegularExpression:
            error = ErrorCode.invalid_regular_expression
        fields = {"error_code": error, "unknown_state_filters": unknown}
        return reply(request, {"throttle_time": 0, **fields, "transaction_states": found})

    def _list(
        self, request: Request, pattern: Regex | None
    ) -> Generator[None, None, list[dict[str, Any]] | EncodedItems]:
        """In slices that what the pattern may cost bounds. Raises `InvalidRegularExpression`."""
        is_listed = self._filter(request)
        listed = SlicedItems(request, ("transaction_states",))
        spent = 0
        for machine in [shard.machine for shard in self._transactions.active()]:
            for transactional_id in list(machine.transactions):
                cost = _ITEM_COST + (pattern.cost(transactional_id) if pattern is not None else 0)
                if spent and spent + cost > COST_PER_SLICE:
                    listed.encode()
                    yield
                    spent = 0
                spent += cost
                metadata = machine.transactions.get(transactional_id)
                if metadata is None or not is_listed(metadata):
                    continue
                if pattern is None or pattern.matches(transactional_id):
                    listed.add(
                        {
                            "transactional_id": transactional_id,
                            "producer_id": metadata.producer_id,
                            "transaction_state": metadata.state.label,
                        }
                    )
        return listed.take()

    def _filter(self, request: Request) -> Callable[[TransactionLogValue], bool]:
        asked, version = request.message, request.version
        states = {_STATES[name] for name in asked.state_filters if name in _STATES}
        producer_ids = set(asked.producer_id_filters)
        duration_ms = asked.duration_filter if version >= _DURATION_FROM else -1
        begun_before_ms = self._clock.now_ms() - duration_ms

        def is_listed(metadata: TransactionLogValue) -> bool:
            if asked.state_filters and metadata.state not in states:
                return False
            if producer_ids and metadata.producer_id not in producer_ids:
                return False
            return duration_ms < 0 or metadata.start_ms < begun_before_ms

        return is_listed


def _unknown_states(request: Request) -> Generator[None, None, EncodedItems]:
    """In slices, as the reply has them; all versions are flexible."""
    encoded = []
    for number, name in enumerate(request.message.state_filters, 1):
        if name not in _STATES:
            encoded.append(compact_string(name))
        if number % _FILTERS_AT_ONCE == 0:
            yield
    return EncodedItems(len(encoded), b"".join(encoded))


def _pattern(request: Request) -> Regex | None:
    """Raises `InvalidRegularExpression`."""
    pattern = None
    if request.version >= _PATTERN_FROM:
        pattern = request.message.transactional_id_pattern
    return compile_regex(pattern) if pattern else None
