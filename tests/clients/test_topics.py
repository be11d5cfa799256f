"""Topics through the clients' admin APIs: created, refused, deleted, recreated."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from suwi.records.record import Record
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess, unique_name
from tests.clients.admins import ADMINS, Admin
from tests.clients.drivers import DRIVERS, Driver
from tests.raw_client import RawClient


@pytest.fixture(params=ADMINS)
def admin(request: pytest.FixtureRequest, broker: BrokerProcess) -> Admin:
    return ADMINS[request.param](broker.address)


def test_a_topic_is_created_listed_and_deleted(broker: BrokerProcess, admin: Admin) -> None:
    topic = unique_name("administered")
    assert admin.create(topic, 3, configs={"retention.ms": "86400000"}) == 0
    assert topic in admin.topics()
    for partition in range(3):
        DRIVERS["confluent-kafka"]().produce(
            broker.address, topic, [Record(value=b"%d" % partition)], partition=partition
        )
        (stored,) = broker.stored_records(topic, partition)
        assert stored.value == b"%d" % partition
    assert admin.delete(topic) == 0
    assert topic not in admin.topics()
    assert not broker.partition_dir(topic).exists()


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "configs", "error"),
    [
        ("no spaces", 1, 1, {}, ErrorCode.invalid_topic_exception),
        ("x" * 250, 1, 1, {}, ErrorCode.invalid_topic_exception),
        ("many-replicas", 1, 2, {}, ErrorCode.invalid_replication_factor),
        ("bad-value", 1, 1, {"retention.ms": "soon"}, ErrorCode.invalid_config),
        ("bad-key", 1, 1, {"retention": "1"}, ErrorCode.invalid_config),
        ("no-partitions", 0, 1, {}, ErrorCode.invalid_partitions),
    ],
)
def test_an_invalid_topic_is_refused_with_the_reason(
    admin: Admin,
    name: str,
    partitions: int,
    replicas: int,
    configs: Mapping[str, str],
    error: ErrorCode,
) -> None:
    if admin.name == "confluent-kafka" and partitions == 0:
        pytest.skip("confluent-kafka refuses this by itself")
    assert admin.create(name, partitions, replicas, configs) == error
    assert name not in admin.topics()


def test_a_topic_is_created_and_deleted_once(admin: Admin) -> None:
    topic = unique_name("once")
    assert admin.create(topic) == 0
    assert admin.create(topic) == ErrorCode.topic_already_exists
    assert admin.delete(topic) == 0
    assert admin.delete(topic) == ErrorCode.unknown_topic_or_partition


def test_a_recreated_topic_has_a_new_id_and_none_of_the_old_records(
    broker: BrokerProcess, raw: RawClient, admin: Admin
) -> None:
    topic = unique_name("again")
    driver = DRIVERS[admin.name]()
    ids = set()
    for life in range(3):
        assert admin.create(topic) == 0
        driver.produce(broker.address, topic, [Record(value=b"life %d" % life)])
        (found,) = driver.consume(broker.address, {topic: 1})[topic]
        assert (found.offset, found.value) == (0, b"life %d" % life)
        ids.add((broker.partition_dir(topic) / "partition.metadata").read_text())
        assert admin.delete(topic) == 0
    assert len(ids) == 3


def test_a_producer_survives_the_recreation_of_its_topic(broker: BrokerProcess) -> None:
    topic = unique_name("replaced")
    admin = ADMINS["confluent-kafka"](broker.address)
    admin.create(topic)
    delivered = []
    producer = Producer({"bootstrap.servers": broker.address, "retry.backoff.ms": 10})
    for life in range(2):
        producer.produce(
            topic,
            b"life %d" % life,
            on_delivery=lambda error, message: delivered.append((error, message.offset())),
        )
        assert producer.flush(120) == 0
        if life == 0:
            admin.delete(topic)
            admin.create(topic)
    assert delivered == [(None, 0), (None, 0)]
    assert [record.value for record in broker.stored_records(topic)] == [b"life 1"]


def test_producing_creates_a_topic(broker: BrokerProcess, driver: Driver) -> None:
    topic = unique_name("by-itself")
    driver.produce(broker.address, topic, [Record(value=b"first")])
    (found,) = driver.consume(broker.address, {topic: 1})[topic]
    assert (found.offset, found.value) == (0, b"first")


def test_topics_are_not_created_if_auto_creation_is_disabled(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "auto.create.topics.enable=false") as broker,
        RawClient(broker.address) as client,
    ):
        fields = {
            "topics": [{"name": "t", "topic_id": None}],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        }
        (answer,) = client.ask(ApiKey.METADATA, 12, fields).topics
        assert answer.error_code == ErrorCode.unknown_topic_or_partition
        assert ADMINS["aiokafka"](broker.address).topics() == set()


def test_new_topics_take_the_brokers_defaults(tmp_path: Path) -> None:
    settings = ("num.partitions=4", "compression.type=zstd")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        DRIVERS["confluent-kafka"]().produce(
            broker.address, "t", [Record(value=b"v")], partition=3, codec="none"
        )
        (header,) = broker.stored_batches("t", 3)
        assert header.codec.name == "ZSTD"
