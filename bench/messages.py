"""Prepared requests: what a client would send, encoded once and then replayed."""

import struct
import time
from typing import Any, Final

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.codec import encode_request, read_response
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey

# Versions that librdkafka's mock cluster serves too, and that name topics.
PRODUCE_VERSION = 9
FETCH_VERSION = 12
RECORD_BYTES_MAX = 1_000
CLIENT_ID = "bench"
# Versions that Suwi and Apache Kafka both serve.
_VERSIONS: Final = {
    ApiKey.METADATA: 12,
    ApiKey.LIST_OFFSETS: 8,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.JOIN_GROUP: 7,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
}
_NOT_READY = (3, 5, 6)  # unknown topic or partition, no leader, not the leader
_SIZE = struct.Struct(">i")


def frame(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


def request(api: ApiKey, fields: dict[str, Any]) -> bytes:
    """A framed request."""
    version = _VERSIONS[api]
    return frame(request_header(api, version, 0, CLIENT_ID) + encode_request(api, version, fields))


def read(api: ApiKey, reply: bytes) -> Any:
    """The entity of the reply to such a request."""
    version = _VERSIONS[api]
    _, body_at = read_response_header(api, version, reply)
    return read_response(api, version, reply, body_at)


def batch_of(size_bytes: int) -> tuple[bytes, int]:
    """A batch of exactly this size, and its number of records."""
    now_ms = int(time.time() * 1000)
    count = max(1, size_bytes // (RECORD_BYTES_MAX + 16))
    records = [Record(timestamp=now_ms, value=b"x" * RECORD_BYTES_MAX) for _ in range(count - 1)]
    last_bytes = max(0, size_bytes - len(build_batch([*records, Record(timestamp=now_ms)])))
    while True:  # the length of a length: at most a few bytes too many at first
        batch = build_batch([*records, Record(timestamp=now_ms, value=b"x" * last_bytes)])
        if len(batch) <= size_bytes:
            assert len(batch) == size_bytes
            return bytes(batch), count
        last_bytes -= len(batch) - size_bytes


def produce_request(topic: str, batch: bytes, acks: int, partition: int = 0) -> bytes:
    """A framed Produce request with one batch for one partition."""
    body = encode_produce_request(
        PRODUCE_VERSION, None, acks, 30_000, [(topic, None, [(partition, batch)])]
    )
    header = request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 0, CLIENT_ID)
    return frame(header + b"".join(body))


def base_offset(reply: bytes) -> int | None:
    """The offset of such a request's batch; None as long as the partition is not ready."""
    _, body_at = read_response_header(ApiKey.PRODUCE, PRODUCE_VERSION, reply)
    answer = decode_produce_response(PRODUCE_VERSION, reply, body_at).topics[0].partitions[0]
    if answer.error_code in _NOT_READY:
        return None
    assert answer.error_code == 0, f"error {answer.error_code}: {answer.error_message}"
    return answer.base_offset


def fetch_request(topic: str, offset: int, bytes_max: int, max_wait_ms: int = 500) -> bytes:
    """A framed Fetch request for partition 0, without a session."""
    asked = FetchPartition(0, -1, offset, -1, -1, bytes_max)
    body = encode_fetch_request(
        FETCH_VERSION,
        FetchRequest(max_wait_ms, 1, bytes_max, [FetchTopic(topic, None, [asked])]),
    )
    return frame(request_header(ApiKey.FETCH, FETCH_VERSION, 0, CLIENT_ID) + body)
