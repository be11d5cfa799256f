"""AddPartitionsToTxn v0-v5. v2: PRODUCER_FENCED. v4: from brokers, of several transactions, adding
or verifying. v5: TRANSACTION_ABORTABLE.

Up to v3 from clients: either all partitions are added, or none.
"""

import asyncio
from itertools import groupby
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.controller.topic_names import INTERNAL_TOPICS
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.errors import reply
from suwi.handlers.transaction_requests import add_partitions, fenced_as
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.transaction.held_requests import HELD_MS_MAX_OF_BROKERS
from suwi.transaction.messages import AddPartitionsRequest, Producer
from suwi.transaction.transaction_metadata import TRANSACTION_VERSION_2

_PRODUCER_FENCED_FROM: Final = 2
_SEVERAL_FROM: Final = 4
_ABORTABLE_FROM: Final = 5


class AddPartitionsToTxn:
    def __init__(self, transactions: CoordinatorRuntime, replicas: ReplicaManager) -> None:
        self._transactions = transactions
        self._replicas = replicas

    async def __call__(self, request: Request) -> Reply:
        asked, version = request.message, request.version
        if version < _SEVERAL_FROM:
            wanted = AddPartitionsRequest(
                asked.v3_and_below_transactional_id,
                Producer(asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch),
                _partitions(asked.v3_and_below_topics),
            )
            results = await self._add(wanted, version)
            return reply(
                request, {"throttle_time": 0, "results_by_topic_v3_and_below": _by_topic(results)}
            )
        several = [
            AddPartitionsRequest(
                each.transactional_id,
                Producer(each.producer_id, each.producer_epoch),
                _partitions(each.topics),
                TRANSACTION_VERSION_2,
                each.verify_only,
                HELD_MS_MAX_OF_BROKERS,
            )
            for each in asked.transactions
        ]
        of_all = await asyncio.gather(*(self._add(each, version) for each in several))
        return reply(
            request,
            {
                "throttle_time": 0,
                "error_code": ErrorCode.none,
                "results_by_transaction": [
                    {
                        "transactional_id": each.transactional_id,
                        "topic_results": _by_topic(results),
                    }
                    for each, results in zip(several, of_all, strict=True)
                ],
            },
        )

    async def _add(
        self, wanted: AddPartitionsRequest, version: int
    ) -> dict[TopicPartition, ErrorCode]:
        refused = self._refused(wanted, version)
        if refused:
            others = dict.fromkeys(wanted.partitions, ErrorCode.operation_not_attempted)
            return {**others, **refused}
        errors = await add_partitions(self._transactions, wanted)
        return {tp: _told(error, version) for tp, error in errors.items()}

    def _refused(
        self, wanted: AddPartitionsRequest, version: int
    ) -> dict[TopicPartition, ErrorCode]:
        image, refused = self._replicas.image, {}
        for tp in wanted.partitions:
            if version < _SEVERAL_FROM and tp.topic in INTERNAL_TOPICS:
                refused[tp] = ErrorCode.topic_authorization_failed
            elif image.partition(tp) is None:
                refused[tp] = ErrorCode.unknown_topic_or_partition
        return refused


def _told(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    return fenced_as(error, version, _PRODUCER_FENCED_FROM)


def _partitions(topics: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        dict.fromkeys(
            TopicPartition(topic.name, PartitionIndex(index))
            for topic in topics
            for index in topic.partitions
        )
    )


def _by_topic(errors: dict[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "results_by_partition": [
                {"partition_index": tp.partition, "partition_error_code": errors[tp]}
                for tp in partitions
            ],
        }
        for name, partitions in groupby(errors, key=lambda tp: tp.topic)
    ]
