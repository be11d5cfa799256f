"""DescribeLogDirs v1-v5. What lies in each data directory. v4: its size and free space."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import TopicPartition
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replicas import Replicas


class DescribeLogDirs:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        asked = request.message.topics
        wanted = None
        if asked is not None:
            wanted = {
                TopicPartition(topic.topic, index) for topic in asked for index in topic.partitions
            }
        results = [self._describe(d, wanted) for d in self._replicas.directories]
        return reply(
            request, {"throttle_time": 0, "error_code": ErrorCode.none, "results": results}
        )

    def _describe(
        self, directory: LogDirectory, wanted: set[TopicPartition] | None
    ) -> dict[str, Any]:
        if directory.state.offline_because is not None:
            return {
                "error_code": ErrorCode.kafka_storage_error,
                "log_dir": directory.path,
                "topics": [],
            }
        topics: dict[str, list[dict[str, Any]]] = {}
        for partition in self._replicas:
            tp = partition.partition
            if (wanted is not None and tp not in wanted) or not directory.holds(tp):
                continue
            topics.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "partition_size": partition.log.size_bytes,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
        total_bytes, free_bytes = directory.space()
        return {
            "error_code": ErrorCode.none,
            "log_dir": directory.path,
            "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
            "total_bytes": total_bytes,
            "usable_bytes": free_bytes,
        }
