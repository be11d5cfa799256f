"""DescribeTransactions v0. Of transactional ids that this broker coordinates."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.coordinator_requests import coordinator_error, hashing
from suwi.handlers.slices import each_once, in_slices, list_in_slices
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.transaction.transaction_records import TransactionLogValue

_PARTITIONS_OF_AN_ITEM: Final = 32
"""So many partitions cost as much as an item of a slice."""


class DescribeTransactions:
    def __init__(self, transactions: CoordinatorRuntime) -> None:
        self._transactions = transactions

    def __call__(self, request: Request) -> Answer:
        states = self._describe_all(request.message.transactional_ids)
        return in_slices(request, list_in_slices(request, "transaction_states", states, {}))

    def _describe_all(self, transactional_ids: Iterable[str]) -> Iterator[dict[str, Any] | None]:
        for transactional_id in each_once(transactional_ids):
            if transactional_id is None:
                yield None
                continue
            yield from hashing(transactional_id)
            yield from self._describe(transactional_id)

    def _describe(self, transactional_id: str) -> Iterator[dict[str, Any] | None]:
        """None for work in between."""
        if not transactional_id:
            yield _refused(transactional_id, ErrorCode.invalid_request)
            return
        try:
            shard = yield from self._transactions.shard_to_read(transactional_id)
        except Exception as error:
            yield _refused(transactional_id, coordinator_error(error))
            return
        metadata = shard.machine.transactions.get(transactional_id)
        if metadata is None:
            yield _refused(transactional_id, ErrorCode.transactional_id_not_found)
            return
        by_topic: dict[str, list[int]] = {}
        for number, (topic, index) in enumerate(metadata.partitions, 1):
            by_topic.setdefault(topic, []).append(index)
            if number % _PARTITIONS_OF_AN_ITEM == 0:
                yield None
        yield _described(transactional_id, metadata, by_topic)


def _refused(transactional_id: str, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


def _described(
    transactional_id: str, metadata: TransactionLogValue, by_topic: Mapping[str, list[int]]
) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": metadata.state.label,
        "transaction_timeout": metadata.timeout_ms,
        "transaction_start_time": metadata.start_ms,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "topics": [
            {"topic": name, "partitions": sorted(by_topic[name])} for name in sorted(by_topic)
        ],
    }
