"""Transactions that Apache Kafka has left open or half ended are ended by Suwi, and vice versa.

Kafka is killed while one transaction is open past its time-out, one is open, and one is decided
but has a marker that cannot be written: its topic takes no batch, however small.
"""

import shutil
from pathlib import Path

import pytest

from compat.directories import committed, create, read, wait_until, write_one
from compat.java_producer import JavaProducer
from compat.kafka import KafkaServer, run_java
from compat.test_adoption import configure
from compat.test_transactions import TRANSACTIONS
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi

_NO_GROUP_OFFSET = -1001
_NEVER_ABORTS = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "3600000"}
_ABORTS_SOON = "transaction.abort.timed.out.transaction.cleanup.interval.ms=200"


def values(address: str, topic: str) -> list[str]:
    return [(each.value or b"").decode() for each in read(address, topic)]


def state_in_kafka(address: str, name: str) -> str:
    described = ("describe", "--transactional-id", name)
    printed = run_java(TRANSACTIONS, "--bootstrap-server", address, *described)
    heading, row = printed.splitlines()[-2:]
    columns = heading.split()
    return row.split()[columns.index("TransactionState")]


def state_in_suwi(address: str, name: str) -> str:
    (found,) = Suwi(address).json("transactions", "describe", name)
    return str(found["state"])


@pytest.fixture(scope="module")
def left_open(tmp_path_factory: pytest.TempPathFactory) -> KafkaServer:
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka"), **_NEVER_ABORTS)
    kafka.format()
    kafka.start()
    address = kafka.address
    try:
        for topic in ("orders", "held"):
            create(address, topic)
        with (
            JavaProducer(address, "slow", transaction_timeout_ms=1000) as slow,
            JavaProducer(address, "copier") as copier,
            JavaProducer(address, "decided") as decided,
        ):
            slow.init().begin("orders", "slow")
            copier.init().begin("orders", "committed").commit()
            copier.begin("orders", "open").offset("copiers", "orders", 2)
            decided.init().begin("held", "decided").offset("deciders", "orders", 1)
            configure(address, "held", "max.message.bytes=1")
            decided.commit()
            write_one(address, "orders", "k", "after")
            states = {name: state_in_kafka(address, name) for name in ("slow", "copier", "decided")}
            assert states == {"slow": "Ongoing", "copier": "Ongoing", "decided": "PrepareCommit"}
            assert values(address, "orders") == values(address, "held") == []
            kafka.kill()
    finally:
        kafka.kill()
    return kafka


def adopted(left_open: KafkaServer, tmp_path: Path) -> BrokerProcess:
    shutil.copytree(left_open.data, tmp_path / "data")
    return BrokerProcess(tmp_path / "data", _ABORTS_SOON, options=["--adopt"])


def test_suwi_ends_the_transactions_that_kafka_left(left_open: KafkaServer, tmp_path: Path) -> None:
    with adopted(left_open, tmp_path) as broker:
        address = broker.address

        def reaches(name: str, state: str) -> None:
            wait_until(lambda: state_in_suwi(address, name) == state, f"{name}: {state}")

        # Decided: its marker is written, although clients may write nothing to the topic.
        reaches("decided", "CompleteCommit")
        assert values(address, "held") == ["decided"]
        assert committed(address, "deciders", "orders") == 1
        reaches("slow", "CompleteAbort")
        # Still open, and not past its time-out.
        assert state_in_suwi(address, "copier") == "Ongoing"
        assert values(address, "orders") == ["committed"]
        with JavaProducer(address, "copier") as copier:
            copier.init()
            assert values(address, "orders") == ["committed", "after"]
            assert committed(address, "copiers", "orders") == _NO_GROUP_OFFSET
            copier.begin("orders", "again").offset("copiers", "orders", 3).commit()
        assert values(address, "orders") == ["committed", "after", "again"]
        assert committed(address, "copiers", "orders") == 3
        assert Suwi(address).ok("transactions", "find-hanging") == "no transaction hangs\n"
        broker.kill()
        broker.start()
        assert values(broker.address, "orders") == ["committed", "after", "again"]


def test_kafka_ends_a_transaction_that_suwi_left_open(
    left_open: KafkaServer, tmp_path: Path
) -> None:
    with adopted(left_open, tmp_path) as broker:
        with JavaProducer(broker.address, "copier") as copier:
            copier.init().begin("orders", "of-suwi").commit()
            copier.begin("orders", "open-in-suwi")
        with JavaProducer(broker.address, "of suwi") as other:
            other.init().begin("orders", "open-too")
        broker.kill()
    configured = left_open.with_data(broker.data, tmp_path / "kafka")
    configured.start()
    try:
        with (
            JavaProducer(configured.address, "copier") as copier,
            JavaProducer(configured.address, "of suwi") as other,
        ):
            copier.init().begin("orders", "of-kafka").commit()
            other.init()
        expected = ["committed", "after", "of-suwi", "of-kafka"]
        assert values(configured.address, "orders") == expected
    finally:
        configured.stop()
