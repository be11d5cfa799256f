"""Requests that are cheap for a client and could be expensive for the broker.

None may delay other clients, use much memory, or cause an unexpected error.
"""

import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.model.topic_config import IGNORED_TOPIC_KEYS
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import build_batch, seal
from suwi.records.compression import Compression, compress
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.versions import REQUEST_ITEMS_MAX, ApiKey
from tests.broker_process import BrokerProcess, unique_name
from tests.raw_client import RawClient, new_topic, produce_fields, produced

pytestmark = pytest.mark.usefixtures("still_serves")

MIB = 1 << 20
MANY = REQUEST_ITEMS_MAX - 2
UNANSWERED_S_MAX = 10
"""Generous: these requests once took minutes, or all memory."""

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


def memory_peak_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def cpu_s(broker: BrokerProcess) -> float:
    """The processor time of the broker: unlike the time of day it does not depend on others."""
    with open(f"/proc/{broker.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def assert_cheap(broker: BrokerProcess, attack: Callable[[], None], memory_bytes: int) -> None:
    """Run the attack while another client must be served; then check the memory."""
    before = memory_peak_bytes(broker)
    attacking = threading.Thread(target=attack)
    attacking.start()
    slowest_s = 0.0
    with RawClient(broker.address) as other:
        while attacking.is_alive():
            asked_s = cpu_s(broker)
            other.ask(ApiKey.API_VERSIONS, 0, {})
            slowest_s = max(slowest_s, cpu_s(broker) - asked_s)
            attacking.join(0.05)
    assert slowest_s < UNANSWERED_S_MAX
    assert memory_peak_bytes(broker) - before < memory_bytes


def ask(broker: BrokerProcess, api_key: int, version: int, fields: dict[str, Any]) -> Any:
    with RawClient(broker.address) as client:
        return client.ask(api_key, version, fields)


# -- many items, or many duplicates --------------------------------------------------------------


@needs_proc
def test_metadata_of_a_topic_requested_many_times_is_returned_once(
    broker: BrokerProcess, client: RawClient
) -> None:
    name = unique_name("wide")
    client.create_topic(name, partitions=1000)

    def attack() -> None:
        fields = {"topics": [{"name": name}] * MANY, "allow_auto_topic_creation": False}
        assert [t.name for t in ask(broker, ApiKey.METADATA, 4, fields).topics] == [name]

    assert_cheap(broker, attack, 200 * MIB)


@needs_proc
def test_describe_configs_of_one_resource_many_times_is_refused(broker: BrokerProcess) -> None:
    resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}

    def attack() -> None:
        asked = {
            "resources": [resource] * MANY,
            "include_synonyms": True,
            "include_documentation": True,
        }
        answer = ask(broker, ApiKey.DESCRIBE_CONFIGS, 4, asked)
        assert {r.error_code for r in answer.results} == {ErrorCode.invalid_request}

    assert_cheap(broker, attack, 300 * MIB)


@needs_proc
def test_describe_producers_of_one_partition_many_times_is_refused(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    for producer_id in range(20):
        batch = build_batch([Record()], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        assert client.produce(topic, bytes(batch)).error == 0

    def attack() -> None:
        asked = {"topics": [{"name": topic, "partition_indexes": [0] * MANY}]}
        (answer,) = ask(broker, ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics
        assert {p.error_code for p in answer.partitions} == {ErrorCode.invalid_request}

    assert_cheap(broker, attack, 300 * MIB)


@needs_proc
@pytest.mark.parametrize("name", ["t", "t" * 30_000])
def test_offsets_of_very_many_partitions_are_answered_in_time(
    broker: BrokerProcess, name: str
) -> None:
    def attack() -> None:
        partitions = [{"partition_index": n, "timestamp": -1} for n in range(MANY)]
        fields = {"replica_id": -1, "topics": [{"name": name, "partitions": partitions}]}
        (answer,) = ask(broker, ApiKey.LIST_OFFSETS, 1, fields).topics
        assert len(answer.partitions) == MANY

    assert_cheap(broker, attack, 300 * MIB)


@pytest.mark.slow
@needs_proc
def test_batches_for_very_many_partitions_of_a_long_name_are_refused_with_short_texts(
    broker: BrokerProcess,
) -> None:
    def attack() -> None:
        fields = produce_fields(9, "t" * 30_000, dict.fromkeys(range(MANY)))
        answer = ask(broker, ApiKey.PRODUCE, 9, fields)
        refused = produced(answer)
        assert {p.error for p in refused.values()} == {ErrorCode.unknown_topic_or_partition}

    assert_cheap(broker, attack, 300 * MIB)


@pytest.mark.slow
@needs_proc
def test_alterations_of_very_many_resources_are_answered_in_time(broker: BrokerProcess) -> None:
    def attack() -> None:
        resources = [
            {"resource_type": 2, "resource_name": str(n % 1000), "configs": []} for n in range(MANY)
        ]
        asked = {"resources": resources, "validate_only": True}
        assert len(ask(broker, ApiKey.ALTER_CONFIGS, 2, asked).responses) == MANY

    assert_cheap(broker, attack, 300 * MIB)


def test_a_request_with_more_items_than_anyone_needs_closes_the_connection(
    client: RawClient,
) -> None:
    topics = [{"name": "", "partitions": []}] * (REQUEST_ITEMS_MAX + 1)
    client.send_request(
        ApiKey.LIST_OFFSETS,
        1,
        encode_request(ApiKey.LIST_OFFSETS, 1, {"replica_id": -1, "topics": topics}),
    )
    assert client.is_closed_by_broker


def test_a_request_of_tags_and_nothing_else_closes_the_connection(client: RawClient) -> None:
    header = struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1)
    client.send_frame(header + b"\xff\xff\x7f" + b"\x05\x00" * MIB)
    assert client.is_closed_by_broker


def test_very_many_topics_in_one_request_are_refused(client: RawClient) -> None:
    topics = [new_topic(f"many-{n}") for n in range(10_001)]
    answer = client.ask(
        ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 60_000, "validate_only": True}
    )
    assert {t.error_code for t in answer.topics} == {ErrorCode.policy_violation}


def test_one_topic_may_have_more_partitions_than_several_of_one_request(
    client: RawClient, topic: str
) -> None:
    """As docs/unsupported.md says."""

    def create(partitions: int) -> int:
        topics = [new_topic(unique_name("wide"), partitions)]
        fields = {"topics": topics, "timeout": 30_000, "validate_only": True}
        return int(client.ask(ApiKey.CREATE_TOPICS, 7, fields).topics[0].error_code)

    def extend(partitions: int) -> int:
        topics = [{"name": topic, "count": partitions, "assignments": None}]
        fields = {"topics": topics, "timeout": 30_000, "validate_only": True}
        return int(client.ask(ApiKey.CREATE_PARTITIONS, 3, fields).results[0].error_code)

    for change in (create, extend):
        assert change(10_001) == change(100_000) == 0
        assert change(100_001) == ErrorCode.invalid_partitions


# -- long names and values -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 9])
def test_the_longest_topic_name_is_refused_with_a_short_text(
    client: RawClient, version: int
) -> None:
    batch = bytes(build_batch([Record(value=b"x")]))
    fields = produce_fields(version, "n" * 32_767, {0: batch})
    (topic,) = client.ask(ApiKey.PRODUCE, version, fields).responses
    (refused,) = topic.partition_responses
    assert refused.error_code == ErrorCode.unknown_topic_or_partition
    assert len(refused.error_message) < 1000


def test_a_configuration_larger_than_the_store_takes_is_refused(client: RawClient) -> None:
    name = unique_name("large")
    configs = {min(IGNORED_TOPIC_KEYS): "0" * 32_000}
    assert _create(client, new_topic(name, configs=configs)) == ErrorCode.none
    configs = dict.fromkeys(sorted(IGNORED_TOPIC_KEYS), "\x01" * 32_000)  # six bytes, once escaped
    refused = _create(client, new_topic(unique_name("larger"), configs=configs))
    assert refused == ErrorCode.invalid_config


def _create(client: RawClient, topic: dict[str, Any]) -> ErrorCode:
    asked = {"topics": [topic], "timeout": 60_000, "validate_only": False}
    (created,) = client.ask(ApiKey.CREATE_TOPICS, 7, asked).topics
    return ErrorCode(created.error_code)


@pytest.mark.parametrize("name", ["²", "٣", "00", "9" * 5000, " 0", "-0"])
def test_a_broker_id_with_unusual_digits_is_refused(client: RawClient, name: str) -> None:
    resource = {"resource_type": 4, "resource_name": name, "configs": []}
    asked = {"resources": [resource], "validate_only": False}
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, asked).responses
    assert answer.error_code == ErrorCode.invalid_request


# -- batches that grow when decompressed -----------------------------------------------------------


def hostile(codec: Compression, section: bytes, count: int = 1) -> bytes:
    header = read_header(build_batch([Record(key=b"", timestamp=1)], codec=codec))
    header = header._replace(record_count=count, last_offset_delta=count - 1)
    return bytes(seal(header, compress(codec, section)))


def varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def record_of_headers(count: int) -> bytes:
    """A record with an empty key and nothing but empty headers."""
    body = bytes([0, 0, 0, 0, 1]) + varint(count) + b"\x00\x01" * count
    return varint(len(body)) + body


@needs_proc
@pytest.mark.parametrize(
    "configs", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}], ids=str
)
def test_a_small_batch_of_millions_of_headers_costs_others_nothing(
    broker: BrokerProcess, client: RawClient, configs: dict[str, str]
) -> None:
    name = unique_name("bomb")
    client.create_topic(name, **configs)
    batch = hostile(Compression.ZSTD, record_of_headers(900_000))
    assert len(batch) < 16 * 1024

    def attack() -> None:
        with RawClient(broker.address) as attacker:
            assert attacker.produce(name, batch).error == 0

    assert_cheap(broker, attack, 40 * MIB)


@needs_proc
def test_a_decompression_bomb_in_the_log_does_not_harm_lookups_by_timestamp(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    batch = hostile(Compression.ZSTD, record_of_headers(900_000))
    assert client.produce(topic, batch).error == 0

    def attack() -> None:
        partitions = [{"partition_index": 0, "timestamp": 1}]
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": partitions}]}
        (answer,) = ask(broker, ApiKey.LIST_OFFSETS, 1, fields).topics
        assert answer.partitions[0].offset == 0

    assert_cheap(broker, attack, 40 * MIB)


@needs_proc
def test_many_decompression_bombs_at_once_use_bounded_memory(
    broker: BrokerProcess, client: RawClient
) -> None:
    name = unique_name("bombs")
    client.create_topic(name, compression_type="gzip")
    batch = hostile(Compression.LZ4, bytes(110 * MIB))
    assert 300_000 < len(batch) < MIB

    def one() -> None:
        with RawClient(broker.address) as attacker:
            assert attacker.produce(name, batch).error == ErrorCode.invalid_record

    def attack() -> None:
        attackers = [threading.Thread(target=one) for _ in range(12)]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()

    assert_cheap(broker, attack, 500 * MIB)


def test_a_batch_that_outgrows_the_limit_in_the_topics_codec_is_refused(client: RawClient) -> None:
    name = unique_name("plain")
    client.create_topic(name, compression_type="uncompressed", max_message_bytes="10000")
    record = Record(key=b"k", value=bytes(50_000), timestamp=1)
    batch = bytes(build_batch([record], codec=Compression.ZSTD))
    assert len(batch) < 10_000
    assert client.produce(name, batch).error == ErrorCode.message_too_large
    small = bytes(build_batch([record._replace(value=os.urandom(500))], codec=Compression.ZSTD))
    assert client.produce(name, small) == (0, 0)
    stored = client.fetch(name, 0).records
    assert read_header(stored).codec is Compression.NONE
    assert len(stored) > HEADER_BYTES + 500
