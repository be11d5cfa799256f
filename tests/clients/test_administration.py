"""Administration with librdkafka's client: all admin APIs of a single broker."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.broker_process import BrokerProcess, unique_name

LIMIT_S = 120
DYNAMIC_TOPIC, DYNAMIC_BROKER, STATIC, DEFAULT = 1, 2, 4, 5


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = unique_name("administered")
    admin.create_topics([NewTopic(name, 2)])[name].result(LIMIT_S)
    return name


def refusal(future: Any) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        future.result(LIMIT_S)
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def settings(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    described = admin.describe_configs([resource])[resource].result(LIMIT_S)
    assert isinstance(described, dict)
    return described


def change(
    admin: AdminClient, kind: ResourceType, name: str, key: str, value: str | None, how: str = "SET"
) -> Any:
    operation = AlterConfigOpType[how if value is not None else "DELETE"]
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    return admin.incremental_alter_configs([resource])[resource]


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_that_is_only_validated_does_not_exist(admin: AdminClient) -> None:
    name = unique_name("validated")
    good = NewTopic(name, 3, 1, config={"retention.ms": "5000"})
    admin.create_topics([good], validate_only=True)[name].result(LIMIT_S)
    assert name not in admin.list_topics(timeout=LIMIT_S).topics
    bad = NewTopic(name, 3, 1, config={"retention.ms": "soon"})
    assert refusal(admin.create_topics([bad], validate_only=True)[name]).name() == "INVALID_CONFIG"


def test_replicas_can_be_assigned_by_hand(admin: AdminClient) -> None:
    name = unique_name("assigned")
    new = NewTopic(name, num_partitions=3, replica_assignment=[[0], [0], [0]])
    admin.create_topics([new])[name].result(LIMIT_S)
    found = admin.list_topics(name, timeout=LIMIT_S).topics[name].partitions
    assert {index: partition.replicas for index, partition in found.items()} == {
        0: [0],
        1: [0],
        2: [0],
    }
    wrong = NewTopic(unique_name("assigned"), num_partitions=1, replica_assignment=[[7]])
    error = refusal(admin.create_topics([wrong])[wrong.topic])
    assert error.name() in ("INVALID_REPLICA_ASSIGNMENT", "INVALID_REPLICATION_FACTOR")


def test_partitions_are_added_and_never_removed(admin: AdminClient, topic: str) -> None:
    more = NewPartitions(topic, 5)
    admin.create_partitions([more], validate_only=True)[topic].result(LIMIT_S)
    assert len(admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions) == 2
    admin.create_partitions([more])[topic].result(LIMIT_S)
    assert len(admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions) == 5
    for count in (5, 4):
        fewer = admin.create_partitions([NewPartitions(topic, count)])[topic]
        assert refusal(fewer).name() == "INVALID_PARTITIONS"


def test_records_are_deleted_up_to_an_offset(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for n in range(10):
        producer.produce(topic, str(n), partition=1)
    assert producer.flush(LIMIT_S) == 0
    asked = TopicPartition(topic, 1, 7)
    assert admin.delete_records([asked])[asked].result(LIMIT_S).low_watermark == 7
    place = TopicPartition(topic, 1)
    earliest = admin.list_offsets({place: OffsetSpec.earliest()})[place].result(LIMIT_S)
    assert earliest.offset == 7
    beyond = TopicPartition(topic, 1, 11)
    assert refusal(admin.delete_records([beyond])[beyond]).name() == "OFFSET_OUT_OF_RANGE"


# -- settings --------------------------------------------------------------------------------------


def test_every_setting_of_a_topic_has_a_value_a_source_and_synonyms(
    admin: AdminClient, topic: str
) -> None:
    change(admin, ResourceType.TOPIC, topic, "retention.ms", "7654321").result(LIMIT_S)
    found = settings(admin, ResourceType.TOPIC, topic)
    for name, entry in found.items():
        assert entry.value is not None, name
        assert not entry.is_read_only, name
        assert entry.source == (DYNAMIC_TOPIC if name == "retention.ms" else DEFAULT), name
    own = found["retention.ms"]
    assert own.value == "7654321"
    assert {s.name: s.source for s in own.synonyms.values()} == {
        "retention.ms": DYNAMIC_TOPIC,
        "log.retention.hours": DEFAULT,
    }
    assert found["cleanup.policy"].value == "delete"


def test_every_setting_of_a_broker_says_whether_it_can_be_changed(admin: AdminClient) -> None:
    found = settings(admin, ResourceType.BROKER, "0")
    assert found["node.id"].is_read_only
    assert not found["log.retention.ms"].is_read_only
    assert not found["log.cleaner.backoff.ms"].is_read_only
    assert found["log.dirs"].source == STATIC
    assert found["num.partitions"].source == DEFAULT


def test_items_are_added_to_and_removed_from_a_list_setting(admin: AdminClient, topic: str) -> None:
    key = "cleanup.policy"
    change(admin, ResourceType.TOPIC, topic, key, "compact", "APPEND").result(LIMIT_S)
    policy = settings(admin, ResourceType.TOPIC, topic)[key].value
    assert set(policy.split(",")) == {"delete", "compact"}
    change(admin, ResourceType.TOPIC, topic, key, "delete", "SUBTRACT").result(LIMIT_S)
    assert settings(admin, ResourceType.TOPIC, topic)[key].value == "compact"
    change(admin, ResourceType.TOPIC, topic, key, None).result(LIMIT_S)
    assert settings(admin, ResourceType.TOPIC, topic)[key].value == "delete"


def test_a_setting_of_a_broker_is_changed_and_reset(admin: AdminClient) -> None:
    key = "log.cleaner.backoff.ms"
    change(admin, ResourceType.BROKER, "0", key, "10000").result(LIMIT_S)
    found = settings(admin, ResourceType.BROKER, "0")[key]
    assert (found.value, found.source) == ("10000", DYNAMIC_BROKER)
    change(admin, ResourceType.BROKER, "0", key, None).result(LIMIT_S)
    assert settings(admin, ResourceType.BROKER, "0")[key].source == DEFAULT
    fixed = change(admin, ResourceType.BROKER, "0", "node.id", "7")
    assert refusal(fixed).name() in ("INVALID_CONFIG", "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("key", "value"), [("retention.ms", "soon"), ("no.such.key", "1"), ("segment.bytes", "-1")]
)
def test_invalid_settings_are_refused(admin: AdminClient, topic: str, key: str, value: str) -> None:
    error = refusal(change(admin, ResourceType.TOPIC, topic, key, value))
    assert error.name() == "INVALID_CONFIG"
    assert key in error.str()
    assert settings(admin, ResourceType.TOPIC, topic)["retention.ms"].source == DEFAULT


def test_a_change_takes_effect_without_a_restart(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", "1000").result(LIMIT_S)
    failed: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failed[0] is not None
    assert failed[0].name() == "MSG_SIZE_TOO_LARGE"
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", None).result(LIMIT_S)
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failed[1] is None


# -- offsets and times -----------------------------------------------------------------------------


def test_offsets_are_found_by_time(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    began_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.address})
    for n in range(5):
        producer.produce(topic, str(n), partition=0, timestamp=began_ms + n * 1000)
        assert producer.flush(LIMIT_S) == 0
    place = TopicPartition(topic, 0)

    def at(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({place: spec})[place].result(LIMIT_S).offset)

    assert at(OffsetSpec.earliest()) == 0
    assert at(OffsetSpec.latest()) == 5
    assert at(OffsetSpec.max_timestamp()) == 4
    assert at(OffsetSpec.for_timestamp(began_ms + 1500)) == 2
    assert at(OffsetSpec.for_timestamp(began_ms + 99_000)) == -1
