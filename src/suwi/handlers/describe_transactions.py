"""DescribeTransactions v0. Of transactional ids that this broker coordinates."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.env.slices import Slices
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import Sliced, SlicedResponse, each_once, sliced_handler
from suwi.model.ids import TopicPartition
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_records import TransactionLogValue, in_order

_PARTITIONS_OF_AN_ITEM: Final = 32
"""So many partitions cost as much as an item of a slice."""

_Described: TypeAlias = tuple[dict[str, Any], Iterable[TopicPartition]]
"""The fields of a transaction without its topics, and its partitions."""


@sliced_handler
def describe_transactions(transactions: TransactionRuntime, request: Request) -> Sliced:
    response = SlicedResponse(request, arrays=("transaction_states", "topics"))
    for transactional_id in each_once(request.message.transactional_ids):
        for _ in (None, *hashing(transactional_id or "")):
            if response.count():
                yield
        if transactional_id is None:
            continue
        fields, partitions = yield from _describe(transactions, request, transactional_id)
        topics = yield from in_order(partitions)
        if response.begin_topic(**fields):
            yield
        for name, indexes in topics:
            if not request.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                continue
            topic = {"topic": name, "partitions": indexes}
            if response.add(topic, 1 + len(indexes) // _PARTITIONS_OF_AN_ITEM):
                yield
    return response.reply()


def _describe(
    transactions: TransactionRuntime, request: Request, transactional_id: str
) -> Slices[_Described]:
    if request.refuses(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        error = ErrorCode.transactional_id_authorization_failed
        return _described(transactional_id, error)
    if not transactional_id:
        return _described(transactional_id, ErrorCode.invalid_request)
    try:
        shard = yield from transactions.shard_to_read(transactional_id)
    except Exception as error:
        return _described(transactional_id, coordinator_error(error))
    metadata = shard.machine.transactions.get(transactional_id)
    if metadata is None:
        return _described(transactional_id, ErrorCode.transactional_id_not_found)
    return _described(transactional_id, ErrorCode.none, metadata)


def _described(
    transactional_id: str, error: ErrorCode, metadata: TransactionLogValue | None = None
) -> _Described:
    fields = {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": metadata.state.label if metadata else "",
        "transaction_timeout": metadata.timeout_ms if metadata else 0,
        "transaction_start_time": metadata.start_ms if metadata else 0,
        "producer_id": metadata.producer_id if metadata else 0,
        "producer_epoch": metadata.producer_epoch if metadata else 0,
    }
    return fields, metadata.partitions if metadata else ()
