"""A client that says exactly what a test tells it to, over a plain socket."""

import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from suwi.wire.codec import encode_request, read_response
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.versions import ApiKey

_PATIENCE_S = 120
_TOPIC_IDS_IN_PRODUCE_FROM = 13
_TOPIC_IDS_IN_FETCH_FROM = 13

Topic = str | UUID


class Produced(NamedTuple):
    error: int
    base_offset: int


class RawClient:
    def __init__(self, address: str, client_id: str = "raw") -> None:
        self._client_id = client_id
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # -- bytes ---------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send(struct.pack(">i", len(frame)) + frame)

    def send_request(self, api_key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        self.send_frame(
            request_header(api_key, version, self._correlation_id, self._client_id) + body
        )

    def read_frame(self) -> bytes | None:
        """The next reply; None where the broker has closed the connection instead."""
        size = self._read(4)
        return None if size is None else self._read(struct.unpack(">i", size)[0])

    def read_frame_within(self, seconds: float) -> bytes | None:
        """Raises TimeoutError."""
        self._socket.settimeout(seconds)
        try:
            return self.read_frame()
        finally:
            self._socket.settimeout(_PATIENCE_S)

    def _read(self, size_bytes: int) -> bytes | None:
        data = b""
        while len(data) < size_bytes:
            try:
                more = self._socket.recv(size_bytes - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            data += more
        return data

    @property
    def is_closed_by_broker(self) -> bool:
        """Waits for what the broker does next: nothing but closing is taken for it."""
        return self.read_frame() is None

    # -- messages ------------------------------------------------------------------------------

    def ask(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """Send a request and return kio's entity of its answer."""
        self.send_request(api_key, version, encode_request(api_key, version, fields))
        return self.answer(api_key, version)

    def answer(self, api_key: int, version: int) -> Any:
        frame = self.read_frame()
        assert frame is not None, "the broker closed the connection"
        correlation_id, body_at = read_response_header(api_key, version, frame)
        assert correlation_id == self._correlation_id
        return read_response(api_key, version, frame, body_at)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """Create a topic, its configuration keys written with `_` for `.`; its id."""
        topic = new_topic(
            name, partitions, configs={k.replace("_", "."): v for k, v in configs.items()}
        )
        answer = self.ask(
            ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 30_000, "validate_only": False}
        )
        (created,) = answer.topics
        assert created.error_code == 0, created.error_message
        topic_id: UUID = created.topic_id
        return topic_id

    def produce(self, topic: Topic, batch: bytes | None, **how: Any) -> Produced:
        """Produce to partition 0, or `partition`; see `produce_fields`."""
        version = how.pop("version", 13 if isinstance(topic, UUID) else 12)
        partition = how.pop("partition", 0)
        fields = produce_fields(version, topic, {partition: batch}, **how)
        answer = self.ask(ApiKey.PRODUCE, version, fields)
        return produced(answer)[partition]

    def fetch(self, topic: Topic, offset: int, **how: Any) -> Any:
        """Fetch from partition 0, or `partition`; kio's entity of that partition's answer."""
        version = how.pop("version", 17 if isinstance(topic, UUID) else 12)
        answer = self.ask(ApiKey.FETCH, version, fetch_fields(version, topic, offset, **how))
        assert answer.error_code == 0 if version >= 7 else True
        (answered,) = answer.responses
        (partition,) = answered.partitions
        return partition


def new_topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    configs: Mapping[str, str | None] | None = None,
    assignments: Mapping[int, list[int]] | None = None,
) -> dict[str, Any]:
    """One topic of a CreateTopics request."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas}
            for index, replicas in (assignments or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


def produce_fields(
    version: int,
    topic: Topic,
    batches: Mapping[int, bytes | None],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, Any]:
    name = {"topic_id" if version >= _TOPIC_IDS_IN_PRODUCE_FROM else "name": topic}
    partitions = [
        {"index": index, "records": None if batch is None else bytes(batch)}
        for index, batch in batches.items()
    ]
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{**name, "partition_data": partitions}],
    }


def produced(answer: Any) -> dict[int, Produced]:
    """What a Produce response for one topic says of its partitions."""
    (topic,) = answer.responses
    return {
        partition.index: Produced(partition.error_code, partition.base_offset)
        for partition in topic.partition_responses
    }


def fetch_fields(
    version: int,
    topic: Topic,
    offset: int,
    *,
    partition: int = 0,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    partition_max_bytes: int = 1 << 20,
    max_bytes: int = 50 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
) -> dict[str, Any]:
    name = {"topic_id" if version >= _TOPIC_IDS_IN_FETCH_FROM else "topic": topic}
    asked = {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_fetched_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": partition_max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [{**name, "partitions": [asked]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
