"""DescribeTopicPartitions v0. Topics and partitions, with paging (KIP-966)."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.topic_names import INTERNAL_TOPICS, check_topic_name
from suwi.handlers import authorized_operations
from suwi.handlers.errors import error_of, reply
from suwi.handlers.metadata import partition_fields
from suwi.metadata.image import ClusterImage, Topic
from suwi.model.errors import BrokerError, InvalidRequest, UnknownTopicOrPartition
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

_PARTITIONS_MAX = 2000  # max.request.partition.size.limit


class DescribeTopicPartitions:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        asked, image = request.message, self._replicas.image
        cursor = asked.cursor
        names = sorted(topic.name for topic in asked.topics) or sorted(image.topics)
        first = 0
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
            first = cursor.partition_index
            if first < 0:
                return self._refuse(request, InvalidRequest("the cursor's partition is negative"))
        left = max(1, min(asked.response_partition_limit, _PARTITIONS_MAX))
        topics: list[dict[str, Any]] = []
        next_cursor = None
        for name in names:
            begin = first if cursor is not None and name == cursor.topic_name else 0
            if left == 0:
                next_cursor = {"topic_name": name, "partition_index": begin}
                break
            described = self._describe(name, begin, left, image)
            topics.append(described)
            left -= len(described["partitions"])
            topic = image.topics.get(name)
            end = begin + len(described["partitions"])
            if topic is not None and end < len(topic.partitions):
                next_cursor = {"topic_name": name, "partition_index": end}
                break
        return reply(request, {"throttle_time": 0, "topics": topics, "next_cursor": next_cursor})

    def _describe(self, name: str, begin: int, limit: int, image: ClusterImage) -> dict[str, Any]:
        try:
            check_topic_name(name)
            topic: Topic | None = image.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        except BrokerError as error:
            return {
                "error_code": error_of(error)[0],
                "name": name,
                "topic_id": None,
                "partitions": [],
            }
        partitions = [
            {
                **partition_fields(index, state, image),
                "eligible_leader_replicas": state.elr,
                "last_known_elr": (),
            }
            for index, state in enumerate(topic.partitions[begin : begin + limit], begin)
        ]
        return {
            "error_code": ErrorCode.none,
            "name": name,
            "topic_id": topic.id,
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": partitions,
            "topic_authorized_operations": authorized_operations.on_topic(True),
        }

    def _refuse(self, request: Request, error: BrokerError) -> Answer:
        refused: dict[str, Any] = {
            "error_code": error.code,
            "name": None,
            "topic_id": None,
            "partitions": [],
        }
        return reply(request, {"throttle_time": 0, "topics": [refused], "next_cursor": None})
