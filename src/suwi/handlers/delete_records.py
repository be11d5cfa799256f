"""DeleteRecords v0-v2. Advances the log start offset; the segments below it are deleted later.

The response is sent when every live replica has the new log start offset, so that no later leader
can bring the records back. As in Kafka the log manager checkpoints the offset later: if all
replicas crash before that, the records are readable again.
"""

import asyncio
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.handlers.authorization import check_topic
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.model.errors import (
    BrokerError,
    InvalidTopic,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    error_of,
)
from suwi.model.ids import NO_OFFSET, Offset
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation

_TO_THE_HIGH_WATERMARK = -1


_Begun: TypeAlias = tuple[Partition, Offset] | ErrorCode
"""A partition whose leader has advanced its log start offset; or why it has not."""


async def delete_records(replicas: ReplicaManager, request: Request) -> Reply:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + request.message.timeout.total_seconds()
    # First all leaders, without waiting for followers; then the followers.
    begun = [
        _begin(replicas, request, topic.name, asked)
        async for topic, asked in sliced(
            request,
            ((topic, asked) for topic in request.message.topics for asked in topic.partitions),
        )
    ]
    response, deleted = SlicedResponse(request), iter(begun)
    for topic in request.message.topics:
        await response.put_topic(name=topic.name)
        for asked in topic.partitions:
            await response.put(await _finish(asked.partition_index, next(deleted), until_s))
    return response.reply()


def _begin(replicas: ReplicaManager, request: Request, topic: str, asked: Any) -> _Begun:
    try:
        check_topic(request, Operation.DELETE, topic)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"records of the internal topic {topic} cannot be deleted")
        partition = replicas.leader_of(topic, asked.partition_index)
        if "delete" not in partition.config.cleanup_policy:
            raise PolicyViolation("cleanup.policy must contain delete")
        high_watermark = partition.high_watermark
        offset = high_watermark if asked.offset == _TO_THE_HIGH_WATERMARK else Offset(asked.offset)
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRange(f"{offset} is not within 0 to {high_watermark}")
        partition.delete_before(offset)
    except Exception as problem:
        return error_of(problem)[0]
    return partition, offset


async def _finish(index: int, begun: _Begun, until_s: float) -> dict[str, Any]:
    code, low_watermark = ErrorCode.none, NO_OFFSET
    if isinstance(begun, ErrorCode):
        code = begun
    else:
        try:
            await _wait_for_replicas(*begun, until_s)
            low_watermark = begun[0].low_watermark
        except BrokerError as error:
            code = error.code
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": code}


async def _wait_for_replicas(partition: Partition, offset: Offset, until_s: float) -> None:
    changed = asyncio.Event()
    notify = changed.set
    partition.watch_low_watermark(notify)
    try:
        async with asyncio.timeout_at(until_s):
            while True:
                # What another leader has is not known here.
                if partition.is_closed or not partition.is_leader:
                    raise NotLeaderOrFollower(f"{partition.partition} has another leader")
                if partition.low_watermark >= offset:
                    return
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise RequestTimedOut("not every replica advanced its log start in time") from None
    finally:
        partition.unwatch(notify)
