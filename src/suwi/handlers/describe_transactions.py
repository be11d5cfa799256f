"""DescribeTransactions v0. Of transactional ids that this broker coordinates."""

from itertools import groupby
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.coordinator_requests import coordinator_error
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.transaction_records import TransactionLogValue


class DescribeTransactions:
    def __init__(self, transactions: CoordinatorRuntime) -> None:
        self._transactions = transactions

    def __call__(self, request: Request) -> Reply:
        states = [self._describe(each) for each in request.message.transactional_ids]
        return reply(request, {"throttle_time": 0, "transaction_states": states})

    def _describe(self, transactional_id: str) -> dict[str, Any]:
        if not transactional_id:
            return _refused(transactional_id, ErrorCode.invalid_request)
        try:
            machine = self._transactions.shard_to_read(transactional_id).machine
        except Exception as error:
            return _refused(transactional_id, coordinator_error(error))
        metadata = machine.transactions.get(transactional_id)
        if metadata is None:
            return _refused(transactional_id, ErrorCode.transactional_id_not_found)
        return _described(transactional_id, metadata)


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


def _described(transactional_id: str, metadata: TransactionLogValue) -> dict[str, Any]:
    by_topic = groupby(sorted(metadata.partitions), key=lambda tp: tp.topic)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": metadata.state.label,
        "transaction_timeout": metadata.timeout_ms,
        "transaction_start_time": metadata.start_ms,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "topics": [
            {"topic": name, "partitions": [tp.partition for tp in partitions]}
            for name, partitions in by_topic
        ],
    }
