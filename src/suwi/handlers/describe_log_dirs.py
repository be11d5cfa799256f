"""DescribeLogDirs v1-v5. What lies in each data directory. v4: its size and free space.

Logs that nobody used since the start stay closed: their files say how large they are.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.log.log_directory import LogDirectory
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.partition import Partition
from suwi.replica.replicas import Replicas

_LOOKED_AT_TOGETHER = 100  # Looking at files takes time, which others need too.


class DescribeLogDirs:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: Request) -> Reply:
        asked = request.message.topics
        wanted = None
        if asked is not None:
            wanted = {
                TopicPartition(topic.topic, index) for topic in asked for index in topic.partitions
            }
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for number, partition in enumerate(self._replicas):
            if number % _LOOKED_AT_TOGETHER == 0:
                await asyncio.sleep(0)
            tp = partition.partition
            if wanted is None or tp in wanted:
                self._look_at(partition, found)
        results = [_describe(d, found.get(d.path, {})) for d in self._replicas.directories]
        return reply(
            request, {"throttle_time": 0, "error_code": ErrorCode.none, "results": results}
        )

    def _look_at(
        self, partition: Partition, found: dict[str, dict[str, list[dict[str, Any]]]]
    ) -> None:
        tp = partition.partition
        try:
            home = self._replicas.directories.home_of(tp, is_new=False)
            if partition.is_open:
                size_bytes = partition.log.size_bytes
            else:
                seen = home.peek(tp)
                size_bytes = 0 if seen is None else seen.size_bytes
        except (KafkaStorageError, OSError):
            return  # Its directory is offline, which the answer says.
        found.setdefault(home.path, {}).setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "partition_size": size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )


def _describe(directory: LogDirectory, topics: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    if directory.state.offline_because is not None:
        return {
            "error_code": ErrorCode.kafka_storage_error,
            "log_dir": directory.path,
            "topics": [],
        }
    total_bytes, free_bytes = directory.space()
    return {
        "error_code": ErrorCode.none,
        "log_dir": directory.path,
        "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
        "total_bytes": total_bytes,
        "usable_bytes": free_bytes,
    }
