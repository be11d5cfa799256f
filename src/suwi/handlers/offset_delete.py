"""OffsetDelete v0: offsets of a group that is empty, or of topics that it does not read."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


class OffsetDelete:
    def __init__(self, groups: CoordinatorRuntime, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        asked = request.message
        known = self._replicas.image.topics
        partitions = [
            (topic.name, partition.partition_index)
            for topic in asked.topics
            for partition in topic.partitions
            if topic.name in known
            and 0 <= partition.partition_index < len(known[topic.name].partitions)
        ]

        def encode(response: ErrorCode | list[ErrorCode]) -> Reply:
            if not isinstance(response, list):
                return reply(request, {"error_code": response, "throttle_time": 0, "topics": ()})
            errors = dict(zip(partitions, response, strict=True))
            topics = [_topic(topic, errors) for topic in asked.topics]
            fields = {"error_code": ErrorCode.none, "throttle_time": 0, "topics": topics}
            return reply(request, fields)

        if not asked.group_id:
            return encode(ErrorCode.invalid_group_id)

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            shard.offset_requests.delete_offsets(asked.group_id, partitions, token, decision)

        return ask_shard(self._groups, asked.group_id, decide, encode, encode)


def _topic(topic: Any, errors: dict[tuple[str, int], ErrorCode]) -> dict[str, Any]:
    unknown = ErrorCode.unknown_topic_or_partition
    partitions = [
        {
            "partition_index": partition.partition_index,
            "error_code": errors.get((topic.name, partition.partition_index), unknown),
        }
        for partition in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}
