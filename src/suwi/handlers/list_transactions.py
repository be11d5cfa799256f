"""ListTransactions v0-v2. v1: filter by duration. v2: by a pattern of the transactional id.

Of what this broker coordinates.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.env import Clock
from suwi.env.slices import Slices
from suwi.group.regular_expressions import (
    COST_PER_SLICE,
    InvalidRegularExpression,
    Regex,
    compile_regex,
)
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, SlicedItems, sliced_handler
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from suwi.wire.encoder import EncodedItems
from suwi.wire.primitives import string

_DURATION_FROM: Final = 1
_PATTERN_FROM: Final = 2
_STATES: Final = {state.label: state for state in TransactionState}

_ITEM_COST: Final = COST_PER_SLICE // SLICE_PARTITIONS

_Filter: TypeAlias = Callable[[TransactionLogValue], bool]


@sliced_handler
def list_transactions(transactions: TransactionRuntime, clock: Clock, request: Request) -> Sliced:
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
    found: list[dict[str, Any]] | EncodedItems = []
    if transactions.is_loading:
        error = ErrorCode.coordinator_load_in_progress
    try:
        asked = request.message
        text = asked.transactional_id_pattern if request.version >= _PATTERN_FROM else None
        pattern = compile_regex(text) if text else None
        if error is ErrorCode.none:
            is_listed = _filter(clock, request, states, producer_ids)
            found = yield from _list(transactions, request, is_listed, pattern)
    except InvalidRegularExpression:
        error = ErrorCode.invalid_regular_expression
    fields = {
        "error_code": error,
        "unknown_state_filters": EncodedItems(len(unknown), b"".join(unknown)),
    }
    return reply(request, {**fields, "transaction_states": found})


def _list(
    transactions: TransactionRuntime, request: Request, is_listed: _Filter, pattern: Regex | None
) -> Slices[list[dict[str, Any]] | EncodedItems]:
    """In slices that are limited by the cost of the pattern. Raises
    `InvalidRegularExpression`."""
    listed = SlicedItems(request, ("transaction_states",))
    spent = 0
    for machine in [shard.machine for shard in transactions.active()]:
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
            if not request.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
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


def _filter(
    clock: Clock,
    request: Request,
    states: Collection[TransactionState],
    producer_ids: Collection[int],
) -> _Filter:
    asked, version = request.message, request.version
    duration_ms = asked.duration_filter if version >= _DURATION_FROM else -1
    begun_before_ms = clock.now_ms() - duration_ms

    def is_listed(metadata: TransactionLogValue) -> bool:
        if asked.state_filters and metadata.state not in states:
            return False
        if producer_ids and metadata.producer_id not in producer_ids:
            return False
        return duration_ms < 0 or metadata.start_ms < begun_before_ms

    return is_listed
