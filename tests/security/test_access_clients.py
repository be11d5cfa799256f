"""Real clients with exactly the rights that they need, and the administration of rules by one."""

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from suwi.security.acls import Operation, PatternType
from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.access import (
    PASSWORDS,
    GuardedBroker,
    create_rules,
    group,
    topic,
    transaction,
)

PATIENCE_S = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded")) as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture
def root(broker: GuardedBroker) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def settings(broker: GuardedBroker) -> dict[str, Any]:
    """Those of alice."""
    return {
        "bootstrap.servers": broker.outside,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }


def produce(producer: Producer, name: str) -> KafkaError | None:
    """The error of the delivery."""
    told: list[KafkaError | None] = []
    try:
        producer.produce(name, b"x", on_delivery=lambda error, _: told.append(error))
    except KafkaException as refused:  # librdkafka has learned already that it may not
        return cast(KafkaError, refused.args[0])
    producer.flush(PATIENCE_S)
    (error,) = told
    return error


def test_an_idempotent_producer_needs_write_on_its_topics_alone(
    root: RawClient, settings: dict[str, Any]
) -> None:
    prefix = unique_name("orders")
    names = f"{prefix}-eu", f"{prefix}x"
    for name in names:
        root.create_topic(name)
    rule = topic(Operation.WRITE, f"{prefix}-").rule()
    create_rules(root, [rule._replace(pattern_type=PatternType.PREFIXED)])
    producer = Producer({**settings, "enable.idempotence": True})
    assert produce(producer, names[0]) is None
    error = produce(producer, names[1])
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(producer, names[0]) is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_needs_read_on_its_topic_and_its_group(
    root: RawClient, settings: dict[str, Any], protocol: str
) -> None:
    name, its_group = unique_name("topic"), unique_name("group")
    root.create_topic(name)
    create_rules(root, [topic(Operation.READ, name).rule(), topic(Operation.WRITE, name).rule()])
    assert produce(Producer(settings), name) is None
    how = {"group.id": its_group, "auto.offset.reset": "earliest", "group.protocol": protocol}
    refused = Consumer({**settings, **how})
    refused.subscribe([name])
    polled = until(lambda: refused.poll(0.5))
    assert polled.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    refused.close()
    create_rules(root, [group(Operation.READ, its_group).rule()])
    consumer = Consumer({**settings, **how})
    consumer.subscribe([name])
    polled = until(lambda: consumer.poll(0.5))
    assert (polled.error(), polled.value()) == (None, b"x")
    consumer.commit(asynchronous=False)
    consumer.close()


def test_a_regular_expression_finds_the_topics_that_its_group_may_see(
    broker: GuardedBroker, root: RawClient, settings: dict[str, Any]
) -> None:
    prefix, its_group = unique_name("topic"), unique_name("group")
    seen, hidden = f"{prefix}-seen", f"{prefix}-hidden"
    administrator = Producer({"bootstrap.servers": broker.address})
    for name in (hidden, seen):
        root.create_topic(name)
        assert produce(administrator, name) is None
    create_rules(
        root, [topic(Operation.READ, seen).rule(), group(Operation.READ, its_group).rule()]
    )
    how = {"group.id": its_group, "auto.offset.reset": "earliest", "group.protocol": "consumer"}
    consumer = Consumer({**settings, **how})
    consumer.subscribe([f"^{prefix}-.*"])
    polled = until(lambda: consumer.poll(0.5))
    assert (polled.error(), polled.topic()) == (None, seen)
    assert {partition.topic for partition in consumer.assignment()} == {seen}
    consumer.close()


def test_a_transactional_producer_needs_write_on_its_id(
    root: RawClient, settings: dict[str, Any]
) -> None:
    name, its_id, its_group = (unique_name(kind) for kind in ("topic", "id", "group"))
    root.create_topic(name)
    create_rules(root, [topic(Operation.WRITE, name).rule(), topic(Operation.READ, name).rule()])
    refused = Producer({**settings, "transactional.id": its_id})
    with pytest.raises(KafkaException) as raised:
        refused.init_transactions(PATIENCE_S)
    assert raised.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    rights = [transaction(Operation.WRITE, its_id), group(Operation.READ, its_group)]
    create_rules(root, [right.rule() for right in rights])
    producer = Producer({**settings, "transactional.id": its_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    assert produce(producer, name) is None
    consumer = Consumer({**settings, "group.id": its_group})
    offsets = [TopicPartition(name, 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    (committed,) = consumer.committed([TopicPartition(name, 0)], PATIENCE_S)
    assert committed.offset == 1
    consumer.close()


def test_rules_are_administrated_by_a_client(broker: GuardedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    name = unique_name("topic")
    allow = AclPermissionType.ALLOW
    rules = [
        AclBinding(ResourceType.TOPIC, name, pattern, "User:carol", "*", operation, allow)
        for pattern, operation in (
            (ResourcePatternType.LITERAL, AclOperation.READ),
            (ResourcePatternType.PREFIXED, AclOperation.WRITE),
        )
    ]
    for created in admin.create_acls(rules).values():
        created.result(PATIENCE_S)
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        f"{name}-eu",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(PATIENCE_S) == rules[1:]
    (deleted,) = admin.delete_acls([wanted]).values()
    assert deleted.result(PATIENCE_S) == rules[1:]
    assert admin.describe_acls(wanted).result(PATIENCE_S) == []


def until(attempt: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        found = attempt()
        if found is not None:
            return found
    raise AssertionError("nothing in time")
