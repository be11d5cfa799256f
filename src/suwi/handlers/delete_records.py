"""DeleteRecords v0-v2. Records before an offset are gone for readers; their segments follow.

Answers when every replica in service knows of it, so that none can bring them back as a leader. As
in Kafka it is written down later, by the housekeeping: if all crash before, they are back.
"""

import asyncio
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.controller.topic_names import INTERNAL_TOPICS
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import (
    BrokerError,
    InvalidTopic,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
)
from suwi.model.ids import NO_OFFSET, Offset
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

_TO_THE_HIGH_WATERMARK = -1


class _Deleted(NamedTuple):
    """A partition whose leader has done it."""

    number: int
    partition: Partition
    offset: Offset


class DeleteRecords:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    async def __call__(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.message.timeout.total_seconds()
        # All at once at the leaders; then the followers are waited for.
        begun = [
            (topic.name, [self._begin(topic.name, asked) for asked in topic.partitions])
            for topic in request.message.topics
        ]
        topics = [
            {"name": name, "partitions": [await _finish(part, until_s) for part in partitions]}
            for name, partitions in begun
        ]
        return reply(request, {"throttle_time": 0, "topics": topics})

    def _begin(self, topic: str, asked: Any) -> _Deleted | dict[str, Any]:
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
        except Exception as problem:
            return _answer(asked.partition_index, error=error_of(problem)[0])
        return _Deleted(asked.partition_index, partition, offset)


async def _finish(begun: _Deleted | dict[str, Any], until_s: float) -> dict[str, Any]:
    if not isinstance(begun, _Deleted):
        return begun
    try:
        await _until_everywhere(begun.partition, begun.offset, until_s)
        return _answer(begun.number, low_watermark=begun.partition.low_watermark)
    except BrokerError as error:
        return _answer(begun.number, error=error.code)


async def _until_everywhere(partition: Partition, offset: Offset, until_s: float) -> None:
    alarm = asyncio.Event()
    ring = alarm.set
    partition.watch(ring)
    try:
        async with asyncio.timeout_at(until_s):
            while partition.low_watermark < offset:
                await alarm.wait()
                alarm.clear()
                if not partition.is_leader:
                    raise NotLeaderOrFollower(f"{partition.partition} is led by another broker")
    except TimeoutError:
        raise RequestTimedOut("not every replica has heard of it in time") from None
    finally:
        partition.unwatch(ring)


def _answer(
    index: int, *, low_watermark: Offset = NO_OFFSET, error: ErrorCode = ErrorCode.none
) -> dict[str, Any]:
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": error}
