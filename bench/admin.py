"""Requests of administrators and of clients that query everything, over a raw connection.

In versions that Suwi and Apache Kafka both serve.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.clients.sockets import Wire
from bench.messages import CLIENT_ID, FETCH_VERSION, frame, read, request
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.headers import request_header
from suwi.wire.versions import ApiKey

_TOPIC, _BROKER = 2, 4
_SET = 0
_EARLIEST, _LATEST = -2, -1
_TIMEOUT_MS = 120_000
Topics = Mapping[str, int]
"""Names and numbers of partitions."""


def describe_broker(node: int = 0) -> bytes:
    """All settings of a broker: a small request with a large response."""
    return _describe_configs([(_BROKER, str(node))])


def describe_topics(topics: Iterable[str]) -> bytes:
    return _describe_configs((_TOPIC, name) for name in topics)


def _describe_configs(resources: Iterable[tuple[int, str]]) -> bytes:
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in resources
    ]
    fields = {"resources": asked, "include_synonyms": True, "include_documentation": False}
    return request(ApiKey.DESCRIBE_CONFIGS, fields)


def describe_log_dirs() -> bytes:
    return request(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})


def describe_cluster() -> bytes:
    fields = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    return request(ApiKey.DESCRIBE_CLUSTER, fields)


def metadata_of_everything() -> bytes:
    return request(
        ApiKey.METADATA,
        {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )


def list_offsets(topics: Topics, timestamp: int = _LATEST) -> bytes:
    asked = [
        {
            "name": name,
            "partitions": [
                {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
                for index in range(count)
            ],
        }
        for name, count in topics.items()
    ]
    return request(ApiKey.LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": asked})


def offsets_for_leader_epoch(topics: Topics) -> bytes:
    asked = [
        {
            "topic": name,
            "partitions": [
                {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                for index in range(count)
            ],
        }
        for name, count in topics.items()
    ]
    return request(ApiKey.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": asked})


def fetch(topics: Topics) -> bytes:
    """Of every partition from its start, without a session and without waiting."""
    asked = [
        FetchTopic(name, None, [FetchPartition(index, -1, 0, -1, -1, 1024) for index in range(n)])
        for name, n in topics.items()
    ]
    body = encode_fetch_request(FETCH_VERSION, FetchRequest(0, 0, 1024 * 1024, asked))
    return frame(request_header(ApiKey.FETCH, FETCH_VERSION, 0, CLIENT_ID) + body)


class Admin(Wire):
    """One connection; each call returns when the broker has done it, or raises."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.socket.settimeout(_TIMEOUT_MS / 1000)

    def call(self, api: ApiKey, fields: dict[str, Any]) -> Any:
        return read(api, self.ask(request(api, fields)))

    def create(self, topics: Topics, *, replicas: list[int] | None = None, **config: str) -> None:
        """With `replicas`: all partitions on these brokers, led by the first."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        wanted = []
        for name, count in topics.items():
            placed = [
                {"partition_index": index, "broker_ids": replicas}
                for index in range(count if replicas else 0)
            ]
            numbers = (-1, -1) if replicas else (count, 1)
            wanted.append(
                {
                    "name": name,
                    "num_partitions": numbers[0],
                    "replication_factor": numbers[1],
                    "assignments": placed,
                    "configs": configs,
                }
            )
        fields = {"topics": wanted, "timeout": _TIMEOUT_MS, "validate_only": False}
        _check(self.call(ApiKey.CREATE_TOPICS, fields).topics)

    def delete(self, topics: Iterable[str]) -> None:
        fields = {"topic_names": list(topics), "timeout": _TIMEOUT_MS}
        _check(self.call(ApiKey.DELETE_TOPICS, fields).responses)

    def alter(self, topic: str, **config: str) -> None:
        changes = [
            {"name": key.replace("_", "."), "config_operation": _SET, "value": value}
            for key, value in config.items()
        ]
        resource = {"resource_type": _TOPIC, "resource_name": topic, "configs": changes}
        fields = {"resources": [resource], "validate_only": False}
        _check(self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields).responses)

    def start_offset(self, topic: str) -> int:
        reply = self.ask(list_offsets({topic: 1}, _EARLIEST))
        answer = read(ApiKey.LIST_OFFSETS, reply).topics[0].partitions[0]
        _check([answer])
        return int(answer.offset)

    def size_bytes(self, topic: str) -> int:
        """The size of partition 0 on disk."""
        fields = {"topics": [{"topic": topic, "partitions": [0]}]}
        found = self.call(ApiKey.DESCRIBE_LOG_DIRS, fields).results
        return sum(
            int(partition.partition_size)
            for directory in found
            for each in directory.topics
            for partition in each.partitions
        )

    def new_producer(self) -> tuple[int, int]:
        """Id and epoch of an idempotent producer."""
        fields = {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        made = self.call(ApiKey.INIT_PRODUCER_ID, fields)
        _check([made])
        return int(made.producer_id), int(made.producer_epoch)


def _check(answers: Iterable[Any]) -> None:
    for answer in answers:
        if int(answer.error_code):
            raise RuntimeError(f"refused: {answer}")
