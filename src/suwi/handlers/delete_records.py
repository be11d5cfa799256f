"""DeleteRecords v0-v2. Records before an offset are gone for readers; their segments follow."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.topic_names import INTERNAL_TOPICS
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import InvalidTopic, OffsetOutOfRange, PolicyViolation
from suwi.model.ids import NO_OFFSET, Offset
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replicas import Replicas

_TO_THE_HIGH_WATERMARK = -1


class DeleteRecords:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        topics = [
            {
                "name": topic.name,
                "partitions": [self._delete(topic.name, asked) for asked in topic.partitions],
            }
            for topic in request.message.topics
        ]
        return reply(request, {"throttle_time": 0, "topics": topics})

    def _delete(self, topic: str, asked: Any) -> dict[str, Any]:
        error, low_watermark = ErrorCode.none, NO_OFFSET
        try:
            if topic in INTERNAL_TOPICS:
                raise InvalidTopic(f"records of the internal topic {topic} cannot be deleted")
            partition = self._replicas.leader_of(topic, asked.partition_index)
            if "delete" not in partition.config.cleanup_policy:
                raise PolicyViolation("cleanup.policy must contain delete")
            high_watermark = partition.high_watermark
            offset = (
                high_watermark if asked.offset == _TO_THE_HIGH_WATERMARK else Offset(asked.offset)
            )
            if not 0 <= offset <= high_watermark:
                raise OffsetOutOfRange(f"{offset} is not within 0 to {high_watermark}")
            partition.delete_before(offset)
            low_watermark = partition.log.start_offset
        except Exception as problem:
            error, _ = error_of(problem)
        return {
            "partition_index": asked.partition_index,
            "low_watermark": low_watermark,
            "error_code": error,
        }
