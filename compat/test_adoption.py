"""Data directories change hands: what Apache Kafka wrote Suwi serves, and the other way round."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from compat.kafka import KafkaServer, run_java
from tests.broker_process import BrokerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TOPICS = "org.apache.kafka.tools.TopicCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


def read(address: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Every visible record of partition 0, from the beginning to its present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "nothing came within the limit"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return found
            found.append(message)
    finally:
        consumer.close()


def content(messages: list[Message]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(m.offset(), m.key(), m.value()) for m in messages]


@pytest.fixture(scope="module")
def written_by_kafka(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A directory of Apache Kafka's, and what its clients could read of each topic."""
    kafka = KafkaServer(
        tmp_path_factory.mktemp("kafka"),
        log_cleaner_backoff_ms="100",
        log_segment_delete_delay_ms="100",
    )
    kafka.format()
    kafka.start()
    try:
        expected = _fill(kafka)
    finally:
        kafka.stop()
    return kafka.data, expected


def _fill(kafka: KafkaServer) -> dict[str, list[tuple[int, bytes | None, bytes | None]]]:
    def create(topic: str, *configs: str) -> None:
        arguments = [part for config in configs for part in ("--config", config)]
        run_java(
            TOPICS, "--bootstrap-server", kafka.address, "--create", "--topic", topic, *arguments
        )

    create("codecs")
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": kafka.address, "compression.type": codec})
        for i in range(50):
            producer.produce("codecs", key=f"{codec}{i}", value=b"v" * 200)
        assert producer.flush(30) == 0

    create("txns")
    for number, commits in enumerate([True, False, True, False]):
        producer = Producer(
            {"bootstrap.servers": kafka.address, "transactional.id": f"txn-{number}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for i in range(10):
            producer.produce("txns", value=f"{number}-{i}")
        if commits:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)

    create(
        "compacted",
        "cleanup.policy=compact",
        "segment.bytes=1048576",
        "segment.ms=1",
        "min.cleanable.dirty.ratio=0.01",
    )
    producer = Producer({"bootstrap.servers": kafka.address})
    for i in range(200):
        value = None if i % 50 == 7 else f"{i}".encode()
        producer.produce("compacted", key=f"k{i % 10}", value=value)
        producer.flush(30)
    return {name: content(read(kafka.address, name)) for name in ("codecs", "txns", "compacted")}


def test_suwi_serves_a_directory_of_kafkas(
    written_by_kafka: tuple[Path, dict], tmp_path: Path
) -> None:
    data, expected = written_by_kafka
    shutil.copytree(data, tmp_path / "data")
    broker = BrokerProcess(tmp_path / "data", options=["--adopt"]).start()
    assert content(read(broker.address, "codecs")) == expected["codecs"]
    assert content(read(broker.address, "txns")) == expected["txns"]
    uncommitted = read(broker.address, "txns", "read_uncommitted")
    assert len(uncommitted) == 40
    served = {key: value for _, key, value in content(read(broker.address, "compacted"))}
    assert served == {key: value for _, key, value in expected["compacted"]}

    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producer.produce("codecs", key="after", value=b"adoption")
    assert producer.flush(30) == 0
    assert content(read(broker.address, "codecs"))[:-1] == expected["codecs"]
    broker.kill()
    broker.start()
    assert content(read(broker.address, "codecs"))[:-1] == expected["codecs"]
    assert content(read(broker.address, "txns")) == expected["txns"]
    broker.stop()


def test_suwi_recovers_a_directory_that_kafka_left_uncleanly(
    written_by_kafka: tuple[Path, dict], tmp_path: Path
) -> None:
    data, expected = written_by_kafka
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (tmp_path / "data" / checkpoint).unlink()
    for index in (tmp_path / "data").glob("*/*.*index"):
        index.unlink()
    with (tmp_path / "data" / "codecs-0" / f"{0:020d}.log").open("ab") as segment:
        segment.write(b"torn")
    broker = BrokerProcess(tmp_path / "data", options=["--adopt"]).start()
    assert content(read(broker.address, "codecs")) == expected["codecs"]
    assert content(read(broker.address, "txns")) == expected["txns"]
    broker.stop()


def test_kafka_adopts_a_log_of_ours(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "ours", "log.segment.bytes=65536").start()
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
        for i in range(500):
            producer.produce("orders", key=f"{codec}{i}", value=b"v" * 300)
        assert producer.flush(30) == 0
    expected = content(read(broker.address, "orders"))
    broker.stop()

    kafka = KafkaServer(tmp_path / "kafka")
    kafka.format()
    kafka.start()
    run_java(TOPICS, "--bootstrap-server", kafka.address, "--create", "--topic", "orders")
    kafka.stop()
    theirs = kafka.data / "orders-0"
    for old in theirs.iterdir():
        if old.name != "partition.metadata":  # Kafka's own id of the topic stays.
            old.unlink()
    for ours in (tmp_path / "ours" / "orders-0").iterdir():
        if ours.name != "partition.metadata":
            shutil.copy(ours, theirs)
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (kafka.data / checkpoint).unlink()
    (kafka.data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    kafka.start()
    try:
        assert content(read(kafka.address, "orders")) == expected
    finally:
        kafka.stop()
