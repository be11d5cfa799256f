"""Malformed frames and invalid requests: the exact response, and the broker keeps serving."""

import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.headers import request_header
from suwi.wire.versions import APIS, ApiKey
from tests.broker_process import BrokerProcess, unique_name
from tests.raw_client import RawClient, fetch_fields, new_topic, produce_fields

pytestmark = pytest.mark.usefixtures("still_serves")

REQUEST_BYTES_MAX = 104_857_600
SERVED = [
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.DESCRIBE_CLUSTER,
]
BAD_NAMES = ["", ".", "..", "../x", "a/b", "a b", "a\0b", "töpic", "x" * 250, "a:b", "a\n"]


def valid_request(api_key: int, version: int) -> bytes:
    """The body of a valid request."""
    fields: dict[int, dict[str, Any]] = {
        ApiKey.LIST_OFFSETS: {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                    ],
                }
            ],
            "timeout": 1000,
        },
        ApiKey.METADATA: {
            "topics": [{"name": "t", "topic_id": None}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
        ApiKey.FIND_COORDINATOR: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
        ApiKey.API_VERSIONS: {"client_software_name": "raw", "client_software_version": "1"},
        ApiKey.CREATE_TOPICS: {
            "topics": [new_topic("t", configs={"retention.ms": "1"}, assignments={0: [0]})],
            "timeout": 60_000,
            "validate_only": True,
        },
        ApiKey.DELETE_TOPICS: {
            "topics": [{"name": "t", "topic_id": None}],
            "topic_names": ["t"],
            "timeout": 1000,
        },
        ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 1000},
        ApiKey.DESCRIBE_CLUSTER: {
            "include_cluster_authorized_operations": False,
            "endpoint_type": 1,
            "include_fenced_brokers": False,
        },
    }
    batch = build_batch([Record(value=b"v")])
    if api_key == ApiKey.PRODUCE:
        named = uuid4() if version >= 13 else "t"
        fields[api_key] = produce_fields(version, named, {0: bytes(batch)})
    elif api_key == ApiKey.FETCH:
        fields[api_key] = fetch_fields(version, uuid4() if version >= 13 else "t", 0)
    return encode_request(api_key, version, fields[api_key])


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), REQUEST_BYTES_MAX + 1, 2**31 - 1])
def test_a_frame_of_impossible_size_closes_the_connection(client: RawClient, size: int) -> None:
    client.send(struct.pack(">i", size) + b"abc")
    assert client.is_closed_by_broker


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0",
        b"\0\x12\0\0\0\0\0",
        struct.pack(">hhih", ApiKey.METADATA, 1, 7, 100),
        struct.pack(">hhih", ApiKey.METADATA, 1, 7, -2),
        struct.pack(">hhih", ApiKey.METADATA, 1, 7, 2) + b"\xff\xfe" + b"\0\0\0\0",
        struct.pack(">hhih", ApiKey.METADATA, 9, 7, -1) + b"\xff" * 12,
        struct.pack(">hhih", ApiKey.METADATA, 9, 7, -1),
    ],
    ids=[
        "empty",
        "one byte",
        "cut",
        "client id too long",
        "client id of negative length",
        "client id is not UTF-8",
        "endless tag count",
        "no tags",
    ],
)
def test_a_broken_request_header_closes_the_connection(client: RawClient, frame: bytes) -> None:
    client.send_frame(frame)
    assert client.is_closed_by_broker


@pytest.mark.parametrize("api_key", [-1, 4, 7, 56, 77, 999, 2**15 - 1])
def test_an_api_that_is_not_served_closes_the_connection(client: RawClient, api_key: int) -> None:
    client.send_frame(struct.pack(">hhih", api_key, 0, 1, -1) + b"\0" * 20)
    assert client.is_closed_by_broker


@pytest.mark.parametrize("api_key", [key for key in SERVED if key != ApiKey.API_VERSIONS])
def test_a_version_that_is_not_served_closes_the_connection(
    broker: BrokerProcess, api_key: ApiKey
) -> None:
    api = APIS[api_key]
    for version in {-1, api.min_version - 1, api.max_version + 1, 2**15 - 1}:
        with RawClient(broker.address) as client:
            client.send_frame(struct.pack(">hhihx", api_key, version, 1, -1) + b"\0" * 50)
            assert client.is_closed_by_broker, version


@pytest.mark.parametrize("version", [5, 6, 99, 2**15 - 1])
def test_api_versions_in_an_unknown_version_returns_the_supported_versions(
    client: RawClient, version: int
) -> None:
    client.send_frame(struct.pack(">hhihx", ApiKey.API_VERSIONS, version, 7, -1))
    answer = client.read_frame()
    assert answer is not None
    correlation_id, error, count, api_key, low, high = struct.unpack(">ihihhh", answer)
    assert (correlation_id, error, count) == (7, ErrorCode.unsupported_version, 1)
    assert (api_key, low, high) == (ApiKey.API_VERSIONS, 0, 4)
    # The connection stays open for a supported version.
    assert client.ask(ApiKey.API_VERSIONS, 0, {}).error_code == ErrorCode.none


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a\0"])
def test_an_odd_client_software_name_is_an_invalid_request(client: RawClient, name: str) -> None:
    fields = {"client_software_name": name, "client_software_version": "1"}
    assert client.ask(ApiKey.API_VERSIONS, 3, fields).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("api_key", SERVED)
def test_a_request_cut_anywhere_closes_the_connection(
    broker: BrokerProcess, api_key: ApiKey
) -> None:
    api = APIS[api_key]
    for version in {api.min_version, api.max_version}:
        body = valid_request(api_key, version)
        for size in range(len(body)):
            with RawClient(broker.address) as client:
                client.send_request(api_key, version, body[:size])
                assert client.is_closed_by_broker, f"v{version} after {size} bytes"


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (ApiKey.METADATA, 1, struct.pack(">i", 2**31 - 1)),
        (ApiKey.METADATA, 1, struct.pack(">i", -2)),
        (ApiKey.METADATA, 9, b"\xff\xff\xff\xff\x0f"),
        (ApiKey.METADATA, 9, b"\x80" * 20 + b"\x01"),
        (ApiKey.METADATA, 9, b"\xff" * 20),
        (ApiKey.LIST_OFFSETS, 1, struct.pack(">ii", -1, 2**31 - 1)),
        (ApiKey.CREATE_TOPICS, 2, struct.pack(">i", 2**31 - 1)),
        (ApiKey.CREATE_TOPICS, 5, b"\xff\xff\xff\xff\x0f"),
        (ApiKey.FETCH, 4, struct.pack(">iiiibi", -1, 0, 0, 1, 0, 2**31 - 1)),
        (ApiKey.FETCH, 12, struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, 0) + b"\xff\xff\xff\xff\x0f"),
        (ApiKey.PRODUCE, 3, struct.pack(">hhii", -1, 1, 1000, 2**31 - 1)),
        (ApiKey.PRODUCE, 9, struct.pack(">bhi", 0, 1, 1000) + b"\xff\xff\xff\xff\x0f"),
        (ApiKey.PRODUCE, 9, struct.pack(">bhi", 0, 1, 1000) + b"\x80" * 20 + b"\x01"),
    ],
)
def test_a_count_larger_than_the_remaining_bytes_closes_the_connection(
    client: RawClient, api_key: ApiKey, version: int, body: bytes
) -> None:
    client.send_request(api_key, version, body)
    assert client.is_closed_by_broker


def test_responses_to_requests_before_a_bad_frame_still_arrive(client: RawClient) -> None:
    good = request_header(ApiKey.API_VERSIONS, 0, 1, None)
    frame = struct.pack(">i", len(good)) + good
    client.send(frame)
    assert client.read_frame() is not None  # The first of a version waits for its schema.
    client.send(frame + struct.pack(">i", -1))
    assert client.read_frame() is not None
    assert client.is_closed_by_broker


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_grows_with_bytes_received_not_with_bytes_announced(broker: BrokerProcess) -> None:
    before = resident_bytes(broker.pid)
    with ExitStack() as connections:
        for _ in range(50):
            client = connections.enter_context(RawClient(broker.address))
            client.send(struct.pack(">i", REQUEST_BYTES_MAX) + b"\0" * 100)
        with RawClient(broker.address) as other:
            other.ask(ApiKey.API_VERSIONS, 0, {})
        assert resident_bytes(broker.pid) - before < REQUEST_BYTES_MAX // 4


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


# -- topics ----------------------------------------------------------------------------------------


def create(client: RawClient, *topics: dict[str, Any], version: int = 7) -> list[ErrorCode]:
    fields = {"topics": list(topics), "timeout": 10_000, "validate_only": False}
    answer = client.ask(ApiKey.CREATE_TOPICS, version, fields)
    return [topic.error_code for topic in answer.topics]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_topic_name_is_refused_by_every_request_that_creates_topics(
    client: RawClient, name: str
) -> None:
    assert create(client, new_topic(name)) == [ErrorCode.invalid_topic_exception]
    for version in (1, 4, 9, 12):
        answer = metadata(client, name, version=version, create=True)
        assert answer.error_code == ErrorCode.invalid_topic_exception


def metadata(
    client: RawClient, topic: str | UUID, *, version: int = 12, create: bool = False
) -> Any:
    by_id = isinstance(topic, UUID)
    asked = {"name": None if by_id else topic, "topic_id": topic if by_id else None}
    fields = {
        "topics": [asked],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    (answered,) = client.ask(ApiKey.METADATA, version, fields).topics
    return answered


def test_names_that_differ_in_dots_and_underscores_only_collide(client: RawClient) -> None:
    name = unique_name("water.level")
    client.create_topic(name)
    other = name.replace(".", "_")
    assert create(client, new_topic(other)) == [ErrorCode.invalid_topic_exception]
    assert metadata(client, other, create=True).error_code == ErrorCode.invalid_topic_exception


def test_an_unknown_topic_without_creation_is_unknown(client: RawClient) -> None:
    missing = metadata(client, unique_name("missing"))
    assert missing.error_code == ErrorCode.unknown_topic_or_partition
    assert metadata(client, uuid4()).error_code == ErrorCode.unknown_topic_id


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (new_topic("bad", 0), ErrorCode.invalid_partitions),
        (new_topic("bad", -2), ErrorCode.invalid_partitions),
        (new_topic("bad", 2**31 - 1), ErrorCode.invalid_partitions),
        (new_topic("bad", 1, 0), ErrorCode.invalid_replication_factor),
        (new_topic("bad", 1, -2), ErrorCode.invalid_replication_factor),
        (new_topic("bad", 1, 2), ErrorCode.invalid_replication_factor),
        (new_topic("bad", 1, 2**15 - 1), ErrorCode.invalid_replication_factor),
        (new_topic("bad", configs={"no.such.key": "1"}), ErrorCode.invalid_config),
        (new_topic("bad", configs={"retention.ms": "soon"}), ErrorCode.invalid_config),
        (new_topic("bad", configs={"retention.ms": "-2"}), ErrorCode.invalid_config),
        (new_topic("bad", configs={"cleanup.policy": "burn"}), ErrorCode.invalid_config),
        (new_topic("bad", configs={"compression.type": "rar"}), ErrorCode.invalid_config),
        (new_topic("bad", configs={"retention.ms": None}), ErrorCode.invalid_config),
        (new_topic("bad", -1, -1, assignments={0: [9]}), ErrorCode.invalid_replica_assignment),
        (new_topic("bad", -1, -1, assignments={0: [0, 0]}), ErrorCode.invalid_replica_assignment),
        (new_topic("bad", -1, -1, assignments={0: []}), ErrorCode.invalid_replica_assignment),
        (new_topic("bad", -1, -1, assignments={1: [0]}), ErrorCode.invalid_replica_assignment),
        (new_topic("bad", 1, 1, assignments={0: [0]}), ErrorCode.invalid_request),
    ],
)
def test_an_invalid_topic_is_refused(
    client: RawClient, asked: dict[str, Any], error: ErrorCode
) -> None:
    assert create(client, asked) == [error]
    assert metadata(client, "bad").error_code == ErrorCode.unknown_topic_or_partition


def test_a_topic_that_exists_or_is_named_twice_is_refused(client: RawClient, topic: str) -> None:
    assert create(client, new_topic(topic)) == [ErrorCode.topic_already_exists]
    name = unique_name("twice")
    assert set(create(client, new_topic(name), new_topic(name))) == {ErrorCode.invalid_request}
    assert metadata(client, name).error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"name": "missing", "topic_id": None}, ErrorCode.unknown_topic_or_partition),
        ({"name": "../x", "topic_id": None}, ErrorCode.unknown_topic_or_partition),
        ({"name": None, "topic_id": uuid4()}, ErrorCode.unknown_topic_id),
        ({"name": "missing", "topic_id": uuid4()}, ErrorCode.invalid_request),
        ({"name": None, "topic_id": None}, ErrorCode.invalid_request),
    ],
)
def test_a_missing_topic_cannot_be_deleted(
    client: RawClient, asked: dict[str, Any], error: ErrorCode
) -> None:
    answer = client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": [asked], "timeout": 60_000})
    assert [topic.error_code for topic in answer.responses] == [error]


def test_a_topic_named_twice_is_not_deleted(client: RawClient, topic: str) -> None:
    fields = {"topics": [{"name": topic, "topic_id": None}] * 2, "timeout": 60_000}
    (answer,) = client.ask(ApiKey.DELETE_TOPICS, 6, fields).responses
    assert answer.error_code == ErrorCode.invalid_request
    assert metadata(client, topic).error_code == ErrorCode.none


# -- other requests --------------------------------------------------------------------------------


def list_offsets(client: RawClient, version: int, topic: str, **asked: int) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1, **asked}
    fields = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [partition]}],
        "timeout": 1000,
    }
    (answered,) = client.ask(ApiKey.LIST_OFFSETS, version, fields).topics
    (found,) = answered.partitions
    return found


@pytest.mark.parametrize(
    ("version", "asked", "error"),
    [
        (1, {"partition_index": 1}, ErrorCode.unknown_topic_or_partition),
        (11, {"partition_index": -1}, ErrorCode.unknown_topic_or_partition),
        (6, {"timestamp": -3}, ErrorCode.unsupported_version),
        (7, {"timestamp": -4}, ErrorCode.unsupported_version),
        (8, {"timestamp": -5}, ErrorCode.unsupported_version),
        (10, {"timestamp": -6}, ErrorCode.unsupported_version),
        (10, {"timestamp": -7}, ErrorCode.unsupported_version),
        (10, {"timestamp": -(2**63)}, ErrorCode.unsupported_version),
        (11, {"current_leader_epoch": 1}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_invalid_list_offsets_requests_are_refused(
    client: RawClient, topic: str, version: int, asked: dict[str, int], error: ErrorCode
) -> None:
    found = list_offsets(client, version, topic, **asked)
    assert (found.error_code, found.offset) == (error, -1)


@pytest.mark.parametrize("timestamp", [-1, -2])
def test_list_offsets_of_an_empty_log_returns_the_leader_epoch(
    client: RawClient, topic: str, timestamp: int
) -> None:
    found = list_offsets(client, 10, topic, timestamp=timestamp)
    assert (found.error_code, found.offset, found.leader_epoch) == (ErrorCode.none, 0, 0)


def test_offsets_of_unknown_topics_are_refused(client: RawClient) -> None:
    for name in ("missing", *BAD_NAMES[:4]):
        found = list_offsets(client, 10, name)
        assert found.error_code == ErrorCode.unknown_topic_or_partition


def test_an_empty_transactional_id_is_an_invalid_request(client: RawClient) -> None:
    fields = {"transactional_id": "", "transaction_timeout": 60_000}
    assert client.ask(ApiKey.INIT_PRODUCER_ID, 2, fields).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [0, 1])
def test_the_empty_id_has_a_coordinator_as_in_kafka(
    client: RawClient, version: int, key_type: int
) -> None:
    fields = {"key": "", "key_type": key_type, "coordinator_keys": ["", ""]}
    answer = client.ask(ApiKey.FIND_COORDINATOR, version, fields)
    found = answer.coordinators if version >= 4 else [answer]
    assert {each.error_code for each in found} == {ErrorCode.none}


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [
        (2, ErrorCode.mismatched_endpoint_type),
        (3, ErrorCode.unsupported_endpoint_type),
        (-1, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_describe_cluster_supports_only_the_broker_endpoint_type(
    client: RawClient, endpoint_type: int, error: ErrorCode
) -> None:
    fields = {"include_cluster_authorized_operations": False, "endpoint_type": endpoint_type}
    answer = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, fields)
    assert (answer.error_code, len(answer.brokers)) == (error, 0)


# -- fetch -----------------------------------------------------------------------------------------


@pytest.fixture
def topic_of_three(client: RawClient, topic: str) -> Iterator[tuple[str, UUID]]:
    """A topic with the offsets 0, 1 and 2, and its id."""
    for _ in range(3):
        client.produce(topic, build_batch([Record(value=b"v")]))
    return topic, metadata(client, topic).topic_id


@pytest.mark.parametrize(
    ("offset", "how", "error"),
    [
        (4, {}, ErrorCode.offset_out_of_range),
        (-1, {}, ErrorCode.offset_out_of_range),
        (2**63 - 1, {}, ErrorCode.offset_out_of_range),
        (-(2**63), {}, ErrorCode.offset_out_of_range),
        (0, {"partition": 1}, ErrorCode.unknown_topic_or_partition),
        (0, {"partition": -1}, ErrorCode.unknown_topic_or_partition),
        (0, {"leader_epoch": 1}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_invalid_fetch_requests_are_refused(
    client: RawClient,
    topic_of_three: tuple[str, UUID],
    offset: int,
    how: dict[str, int],
    error: ErrorCode,
) -> None:
    name, topic_id = topic_of_three
    assert client.fetch(name, offset, **how).error_code == error
    assert client.fetch(topic_id, offset, **how).error_code == error


def test_topics_that_do_not_exist_cannot_be_fetched(client: RawClient) -> None:
    assert client.fetch(uuid4(), 0).error_code == ErrorCode.unknown_topic_id
    for name in ("missing", *BAD_NAMES[:4]):
        assert client.fetch(name, 0).error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("session_id", "session_epoch", "error"),
    [
        (12345, 1, ErrorCode.fetch_session_id_not_found),
        (0, 5, ErrorCode.fetch_session_id_not_found),
        (-1, 5, ErrorCode.fetch_session_id_not_found),
    ],
)
def test_an_unknown_fetch_session_is_refused(
    client: RawClient,
    topic_of_three: tuple[str, UUID],
    session_id: int,
    session_epoch: int,
    error: ErrorCode,
) -> None:
    fields = fetch_fields(
        12, topic_of_three[0], 0, session_id=session_id, session_epoch=session_epoch
    )
    assert client.ask(ApiKey.FETCH, 12, fields).error_code == error


def test_a_fetch_session_refuses_an_epoch_out_of_turn(
    client: RawClient, topic_of_three: tuple[str, UUID]
) -> None:
    opened = client.ask(ApiKey.FETCH, 12, fetch_fields(12, topic_of_three[0], 0, session_epoch=0))
    assert opened.session_id > 0
    for epoch in (2, -2, 2**31 - 1):
        fields = fetch_fields(
            12, topic_of_three[0], 0, session_id=opened.session_id, session_epoch=epoch
        )
        answer = client.ask(ApiKey.FETCH, 12, fields)
        assert answer.error_code == ErrorCode.invalid_fetch_session_epoch


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
@pytest.mark.parametrize("size", [0, -1, -(2**31)])
def test_a_fetch_with_an_odd_size_limit_still_makes_progress(
    client: RawClient, topic_of_three: tuple[str, UUID], limit: str, size: int
) -> None:
    fetched = client.fetch(topic_of_three[0], 1, **{limit: size})
    assert fetched.error_code == ErrorCode.none
    assert fetched.records


@pytest.mark.parametrize(("min_bytes", "max_wait_ms"), [(-1, -1), (2**31 - 1, -1), (-1, 2**31 - 1)])
def test_a_fetch_with_an_odd_max_wait_gets_a_response(
    client: RawClient, topic_of_three: tuple[str, UUID], min_bytes: int, max_wait_ms: int
) -> None:
    fetched = client.fetch(topic_of_three[0], 0, min_bytes=min_bytes, max_wait_ms=max_wait_ms)
    assert fetched.records
