"""`KafkaContainer`, as tests that were written for testcontainers use it."""

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from suwi.model.config_kinds import BadConfig
from suwi.testing import KafkaContainer

PATIENCE_S = 120


def test_records_are_written_and_read() -> None:
    with KafkaContainer("confluentinc/cp-kafka:7.6.0").with_kraft() as kafka:
        servers = {"bootstrap.servers": kafka.get_bootstrap_server()}
        producer = Producer(servers)
        producer.produce("orders", "one")
        assert producer.flush(PATIENCE_S) == 0
        consumer = Consumer({**servers, "group.id": "test", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(PATIENCE_S)
        consumer.close()
    assert message is not None
    assert message.value() == b"one"


def test_host_and_port_are_those_of_the_bootstrap_server() -> None:
    with KafkaContainer(port=9093) as kafka:
        address = f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        assert address == kafka.get_bootstrap_server()


def test_the_environment_configures_the_broker() -> None:
    kafka = KafkaContainer()
    kafka.with_env("KAFKA_NUM_PARTITIONS", 7).with_envs(KAFKA_HEAP_OPTS="-Xmx256m")
    kafka.with_env("KAFKA_BROKER_ID", "5").with_env("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9092")
    kafka.start(timeout=60)
    try:
        admin = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()})
        broker = ConfigResource(ResourceType.BROKER, "1")
        configs = admin.describe_configs([broker])[broker].result(PATIENCE_S)
        assert configs["num.partitions"].value == "7"
    finally:
        kafka.stop()


def test_a_wrong_value_is_named_with_its_variable() -> None:
    with pytest.raises(BadConfig, match=r"^KAFKA_NUM_PARTITIONS: "):
        KafkaContainer().with_env("KAFKA_NUM_PARTITIONS", "many").start()


def test_security_is_refused_and_not_left_out() -> None:
    with pytest.raises(ValueError, match=r"KAFKA_SASL_ENABLED_MECHANISMS: .* plain listener only"):
        KafkaContainer().with_env("KAFKA_SASL_ENABLED_MECHANISMS", "PLAIN").start()


def test_what_needs_a_container_says_so() -> None:
    with pytest.raises(AttributeError, match=r"there is no container: .* has no 'exec'"):
        KafkaContainer().exec("ls")


def test_a_broker_that_is_not_running_has_no_address() -> None:
    kafka = KafkaContainer().start()
    kafka.stop()
    kafka.stop()
    with pytest.raises(RuntimeError, match="not running"):
        kafka.get_bootstrap_server()
