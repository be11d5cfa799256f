"""DescribeLogDirs v1-v5. The replicas in each log directory. v4: its total and usable bytes.

Logs that have not been used since the start stay closed. Their sizes are read from the files, in a
thread.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.log.log_directory import LogDirectory
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

_REPLICAS_AT_ONCE = 100  # then other requests get a turn

Sizes = dict[TopicPartition, int]


async def describe_log_dirs(replicas: ReplicaManager, request: Request) -> Reply:
    asked = request.message.topics
    wanted: dict[str, set[int]] | None = None
    if asked is not None:
        wanted = {}
        async for topic in sliced(request, asked):
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
    found: dict[str, Sizes] = {}
    closed: dict[str, list[TopicPartition]] = {}
    for number, partition in enumerate(replicas):
        if number % _REPLICAS_AT_ONCE == 0:
            await request.next_slice()
        tp = partition.partition
        if wanted is not None and tp.partition not in wanted.get(tp.topic, ()):
            continue
        try:
            path = replicas.directories.directory_of(tp, is_new=False).path
            if partition.is_open:
                found.setdefault(path, {})[tp] = partition.log_as_it_is.size_bytes
            else:
                closed.setdefault(path, []).append(tp)
        except KafkaStorageError:
            pass  # its log directory is offline; `_offline` reports that
    results = [
        await _describe(
            request, directory, found.get(directory.path, {}), closed.get(directory.path, [])
        )
        for directory in replicas.directories
    ]
    return reply(request, {"error_code": ErrorCode.none, "results": results})


async def _describe(
    request: Request, directory: LogDirectory, sizes: Sizes, closed: Sequence[TopicPartition]
) -> dict[str, Any]:
    if directory.state.offline_because is not None:
        return _offline(directory)
    in_thread = asyncio.get_running_loop().run_in_executor
    try:
        for first in range(0, len(closed), _REPLICAS_AT_ONCE):
            chunk = closed[first : first + _REPLICAS_AT_ONCE]
            sizes |= await in_thread(None, _sizes_of, directory, chunk)
        total_bytes, free_bytes = await in_thread(None, directory.space)
    except OSError:
        return _offline(directory)
    replicas = SlicedResponse(request, ("results",))
    await replicas.put_by_topic("name", sorted(sizes.items()), _answer)
    return {
        "error_code": ErrorCode.none,
        "log_dir": directory.path,
        "topics": replicas.topics(),
        "total_bytes": total_bytes,
        "usable_bytes": free_bytes,
    }


def _sizes_of(directory: LogDirectory, partitions: Sequence[TopicPartition]) -> Sizes:
    """The sizes of these logs: 0 for a log without a directory. Unreadable ones are left out."""
    sizes = {}
    for tp in partitions:
        try:
            seen = directory.peek(tp)
        except FileNotFoundError:
            seen = None
        except PermissionError:
            continue
        sizes[tp] = 0 if seen is None else seen.size_bytes
    return sizes


def _answer(index: int, size_bytes: int) -> dict[str, Any]:
    fields = {"partition_index": index, "partition_size": size_bytes}
    return {**fields, "offset_lag": 0, "is_future_key": False}


def _offline(directory: LogDirectory) -> dict[str, Any]:
    return {"error_code": ErrorCode.kafka_storage_error, "log_dir": directory.path, "topics": []}
