"""ListOffsets v1-v11. Offsets by timestamp. v4: epochs. v7: max timestamp. v8-v11: tiered storage.

Right after an election the leader's high watermark may be below the one its predecessor reported.
Until it has reached the start of the leader's epoch, consumers get OFFSET_NOT_AVAILABLE (KIP-207).
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.authorization import check_topic
from suwi.handlers.slices import SlicedResponse, times_named
from suwi.model.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
    error_of,
)
from suwi.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, Offset
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.records.batch import read_header
from suwi.records.record import iter_records
from suwi.replica.log_validator import takes_long
from suwi.replica.partition import Partition
from suwi.replica.replica_log import wait_until_ready
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation

_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3
_EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING_UPLOAD = -4, -5, -6
_SINCE_VERSION = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NEVER = 2**15
_READ_COMMITTED = 1
# These batches may not have been decompressed before: each may grow to a hundred times its size.
_DECOMPRESSIONS_MAX = 2

_OFFSET_NOT_AVAILABLE_FROM = 5
_READY_TIMEOUT_S = 5.0


Found = tuple[int, Offset]
"""A timestamp and its offset."""
_NOT_FOUND: Found = (NO_TIMESTAMP, NO_OFFSET)


class ListOffsets:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._decompressing = asyncio.Semaphore(_DECOMPRESSIONS_MAX)

    async def __call__(self, request: Request) -> Reply:
        response = SlicedResponse(request)
        for topic in request.message.topics:
            await response.put_topic(name=topic.name)
            times_asked = await times_named(
                request, (asked.partition_index for asked in topic.partitions)
            )
            for asked in topic.partitions:
                times = times_asked[asked.partition_index]
                await response.put(await self._answer(request, topic.name, asked, times))
        return response.reply()

    async def _answer(
        self, request: Request, topic: str, asked: Any, times_asked: int
    ) -> dict[str, Any]:
        try:
            check_topic(request, Operation.DESCRIBE, topic)
            if times_asked > 1:
                raise InvalidRequest(f"{topic}-{asked.partition_index} is named more than once")
            if asked.timestamp < 0 and request.version < _SINCE_VERSION.get(
                asked.timestamp, _NEVER
            ):
                raise UnsupportedVersion(f"timestamp {asked.timestamp} needs a newer version")
            partition = self._replicas.leader_of(topic, asked.partition_index)
            partition.check_epoch(getattr(asked, "current_leader_epoch", NO_EPOCH))
            timestamp, offset = await self._find(request, partition, asked.timestamp)
            error, epoch = ErrorCode.none, NO_EPOCH
            if offset != NO_OFFSET:
                log = partition.log
                is_empty = log.start_offset == log.end_offset
                epoch = partition.leader_epoch if is_empty else log.epochs.epoch_at(offset)
        except Exception as problem:
            error, _ = error_of(problem)
            if error is OffsetNotAvailable.code and request.version < _OFFSET_NOT_AVAILABLE_FROM:
                error = LeaderNotAvailable.code
            (timestamp, offset), epoch = _NOT_FOUND, NO_EPOCH
        return {
            "partition_index": asked.partition_index,
            "error_code": error,
            "timestamp": timestamp,
            "offset": offset,
            "leader_epoch": epoch,
        }

    async def _find(self, request: Request, partition: Partition, timestamp: int) -> Found:
        if partition.replica_log.ready_log is None:
            await wait_until_ready([partition.replica_log], _READY_TIMEOUT_S)
        if timestamp >= 0 or timestamp == _MAX_TIMESTAMP:
            until = timestamp if timestamp >= 0 else None
            for _ in partition.log.reading_timestamps(until):
                await request.next_slice()
                partition.check_open()
        log, is_replica = partition.log, request.message.replica_id != NO_NODE
        limit = partition.high_watermark
        if is_replica:
            limit = log.end_offset
        elif getattr(request.message, "isolation_level", 0) == _READ_COMMITTED:
            limit = partition.last_stable_offset
        is_known = is_replica or partition.watermark_is_known
        if timestamp == _LATEST:
            if not is_known:
                raise _offset_not_available(partition)
            return NO_TIMESTAMP, limit
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            return NO_TIMESTAMP, log.start_offset
        if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
            return _NOT_FOUND  # there is no tiered storage
        if timestamp == _MAX_TIMESTAMP:
            newest, start = log.batch_of_max_timestamp(), log.start_offset
            found = await self._in_batch(newest.read(), None, start) if newest else _NOT_FOUND
        else:
            found = await self._first_at(partition, timestamp)
        if NO_OFFSET < found[1] < limit:
            return found
        if not is_known:
            raise _offset_not_available(partition)
        return _NOT_FOUND

    async def _first_at(self, partition: Partition, timestamp: int) -> Found:
        log = partition.log
        batch = log.batch_at_time(timestamp)
        while batch is not None:
            data = batch.read()
            found = await self._in_batch(data, timestamp, log.start_offset)
            if found != _NOT_FOUND:
                return found
            partition.check_open()
            # The record is before the log start offset, or compaction removed it from its batch.
            batch = log.batch_at_time(timestamp, Offset(read_header(data).next_offset))
        return _NOT_FOUND

    async def _in_batch(self, data: bytes, timestamp: int | None, start: Offset) -> Found:
        if not takes_long(len(data), read_header(data)):
            return _first_record(data, timestamp, start)
        loop = asyncio.get_running_loop()
        async with self._decompressing:
            return await loop.run_in_executor(None, _first_record, data, timestamp, start)


def _offset_not_available(partition: Partition) -> OffsetNotAvailable:
    return OffsetNotAvailable(
        f"{partition.partition}: the new leader's high watermark is not known yet"
    )


def _first_record(data: bytes, timestamp: int | None, start: Offset) -> Found:
    """The first record at or after `timestamp`; if that is None, the first with the newest one."""
    header = read_header(data)
    wanted = header.max_timestamp if timestamp is None else timestamp
    for record in iter_records(data, header, with_headers=False):
        if record.timestamp >= wanted and record.offset >= start:
            return record.timestamp, Offset(record.offset)
    return _NOT_FOUND
