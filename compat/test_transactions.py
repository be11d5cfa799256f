"""Transactions of Apache Kafka's own producer and tools, in both versions."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from compat.directories import read, write_one
from compat.java_producer import JavaProducer
from compat.kafka import ToolFailed
from compat.test_features import FEATURES, levels
from compat.test_tools import CONSUME, create, kafka
from suwi.records.builder import build_batch
from suwi.records.record import Record
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.raw_client import Produced, RawClient

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 3000
FENCED = "ProducerFencedException|InvalidProducerEpochException"
_PATIENCE_S = 60


@pytest.fixture(params=[1, 2])
def version(suwi: BrokerProcess, request: pytest.FixtureRequest) -> int:
    """The cluster's transaction.version."""
    wanted: int = request.param
    current = int(levels(suwi)["transaction.version"][2])
    if wanted != current:
        direction = "upgrade" if wanted > current else "downgrade"
        kafka(suwi, FEATURES, direction, "--feature", f"transaction.version={wanted}")
    return wanted


def test_a_java_producer_commits(suwi: BrokerProcess, topic: str, version: int) -> None:
    create(suwi, topic)
    name = f"java-{version}"
    printed = kafka(
        suwi,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100"),
        *("--throughput", "-1", "--transactional-id", name, "--transaction-duration-ms", "50"),
    )
    assert f"{RECORDS} records sent" in printed
    read = kafka(
        suwi,
        CONSUME,
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--isolation-level", "read_committed", "--timeout-ms", "5000"),
    )
    assert f"Processed a total of {RECORDS} messages" in read
    assert name in kafka(suwi, TRANSACTIONS, "list")
    described = kafka(suwi, TRANSACTIONS, "describe", "--transactional-id", name)
    assert "CompleteCommit" in described
    found, *_ = Suwi(suwi.address).json("explain", topic, 0, 0)
    assert (found["transaction"], found["transactional_id"]) == ("committed", name)


def epoch(suwi: BrokerProcess, name: str) -> int:
    """The producer epoch of a transactional id; its producer id never changes here."""
    (found,) = Suwi(suwi.address).json("transactions", "describe", name)
    return int(found["producer_epoch"])


def librdkafka(suwi: BrokerProcess, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": suwi.address, "transactional.id": name})
    producer.init_transactions(_PATIENCE_S)
    return producer


def begin(producer: Producer, topic: str, value: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    assert producer.flush(_PATIENCE_S) == 0


def values(suwi: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[str]:
    return [(each.value or b"").decode() for each in read(suwi.address, topic, isolation)]


def test_a_transactional_id_moves_between_java_and_librdkafka_with_a_transaction_open_each_time(
    suwi: BrokerProcess, topic: str, version: int
) -> None:
    """librdkafka has version 1 only. Each move aborts what is open, and fences with its epoch; the
    next producer gets the one after that. With version 2 each transaction of Java has its own."""
    create(suwi, topic)
    name, epochs = f"mover-{version}", []
    with JavaProducer(suwi.address, name) as first, JavaProducer(suwi.address, name) as third:
        first.init().begin(topic, "java-1").commit()
        first.begin(topic, "java-open-1")
        epochs.append(epoch(suwi, name))

        second = librdkafka(suwi, name)
        epochs.append(epoch(suwi, name))
        with pytest.raises(ToolFailed, match=FENCED):
            first.commit()
        begin(second, topic, "librdkafka-1")
        second.commit_transaction(_PATIENCE_S)
        begin(second, topic, "librdkafka-open")
        epochs.append(epoch(suwi, name))

        third.init()
        epochs.append(epoch(suwi, name))
        with pytest.raises(KafkaException) as fenced:
            second.commit_transaction(_PATIENCE_S)
        assert fenced.value.args[0].code() in (
            KafkaError._FENCED,
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        )
        third.begin(topic, "java-2").commit()
        third.begin(topic, "java-open-2")
        epochs.append(epoch(suwi, name))
        # A second time: the fenced ones change nothing.
        with pytest.raises(ToolFailed, match=FENCED):
            first.begin(topic, "late")
        third.abort()
        third.begin(topic, "java-3").commit()
    assert epochs == ([0, 2, 2, 4, 4] if version == 1 else [1, 3, 3, 5, 6])
    assert values(suwi, topic) == ["java-1", "librdkafka-1", "java-2", "java-3"]
    assert values(suwi, topic, "read_uncommitted") == [
        *("java-1", "java-open-1", "librdkafka-1", "librdkafka-open"),
        *("java-2", "java-open-2", "java-3"),
    ]


@pytest.mark.parametrize("by_tool", [False, True], ids=["Admin.fenceProducers", "the tool"])
def test_an_administrator_fences_a_producer_and_ends_its_transaction(
    suwi: BrokerProcess, topic: str, by_tool: bool, version: int
) -> None:
    create(suwi, topic)
    name = f"fenced-{by_tool}-{version}"
    with (
        JavaProducer(suwi.address, name) as producer,
        JavaProducer(suwi.address, "unused") as admin,
    ):
        producer.init().begin(topic, "aborted")
        write_one(suwi.address, topic, "k", "after")
        assert values(suwi, topic) == []
        if by_tool:
            kafka(suwi, TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", name)
        else:
            admin.fence(name)
        assert values(suwi, topic) == ["after"]
        with pytest.raises(ToolFailed, match=FENCED):
            producer.commit()


# -- hanging transactions --------------------------------------------------------------------------


def abort_with_suwi(broker: BrokerProcess, topic: str, start_offset: int) -> None:
    command = Suwi(broker.address)
    (found,) = command.json("transactions", "find-hanging")
    assert (found["topic"], found["start_offset"]) == (topic, start_offset)
    command.ok("transactions", "abort", topic, 0, "--start-offset", start_offset)
    assert command.ok("transactions", "find-hanging") == "no transaction hangs\n"


def abort_with_kafka(broker: BrokerProcess, topic: str, start_offset: int) -> None:
    find = (TRANSACTIONS, "find-hanging", "--broker-id", "0")
    heading, row = kafka(broker, *find).splitlines()[-2:]
    found = dict(zip(heading.split(), row.split(), strict=False))
    assert (found["Topic"], found["StartOffset"]) == (topic, str(start_offset))
    offset = ("--start-offset", str(start_offset))
    kafka(broker, TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", *offset)
    assert topic not in kafka(broker, *find)


@pytest.mark.parametrize("abort", [abort_with_suwi, abort_with_kafka])
def test_a_hanging_transaction_is_found_and_ended_and_readers_go_on(
    tmp_path: Path, abort: Callable[[BrokerProcess, str, int], None]
) -> None:
    """A write that comes after the end of its transaction, to a broker that does not verify."""
    setting = "transaction.partition.verification.enable=false"
    with BrokerProcess(tmp_path / "data", setting) as broker:
        write_one(broker.address, "orders", "k", "first")
        producer = librdkafka(broker, "copier")
        begin(producer, "orders", "committed")
        producer.commit_transaction(_PATIENCE_S)
        (found,) = Suwi(broker.address).json("transactions", "describe", "copier")
        hour_ago_ms = int((time.time() - 3600) * 1000)
        late = build_batch(
            [Record(value=b"late", timestamp=hour_ago_ms)],
            producer_id=found["producer_id"],
            producer_epoch=found["producer_epoch"],
            base_sequence=1,
            transactional=True,
        )
        with RawClient(broker.address) as client:
            sent = client.produce("orders", late, version=9, transactional_id="copier")
        assert sent == Produced(error=0, base_offset=3)
        write_one(broker.address, "orders", "k", "after")
        broker.kill()
        broker.start()
        assert values(broker, "orders") == ["first", "committed"]
        abort(broker, "orders", 3)
        assert values(broker, "orders") == ["first", "committed", "after"]
        broker.stop()
