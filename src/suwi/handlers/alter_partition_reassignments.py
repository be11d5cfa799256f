"""AlterPartitionReassignments v0-v1: moves replicas to other brokers, or cancels it (KIP-455).

v1: may refuse to change the replication factor (KIP-860).
"""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class AlterPartitionReassignments:
    def __init__(self, controller: ControllerApi) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        allows_change = getattr(asked, "allow_replication_factor_change", True)
        targets = {
            TopicPartition(topic.name, PartitionIndex(partition.partition_index)): (
                partition.replicas
            )
            for topic in asked.topics
            for partition in topic.partitions
        }
        error, message = ErrorCode.none, None
        results: dict[TopicPartition, BrokerError | None] = {}
        try:
            async with in_time(deadline_of(request)):
                results = await self._controller.reassignments.reassign(
                    targets, allow_replication_factor_change=allows_change
                )
        except BrokerError as problem:
            error, message = error_of(problem)
        topics: dict[str, list[dict[str, object]]] = {}
        for tp, result in results.items():
            code, text = (ErrorCode.none, None) if result is None else error_of(result)
            topics.setdefault(tp.topic, []).append(
                {"partition_index": tp.partition, "error_code": code, "error_message": text}
            )
        return reply(
            request,
            {
                "throttle_time": 0,
                "allow_replication_factor_change": allows_change,
                "error_code": error,
                "error_message": message,
                "responses": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
            },
        )
