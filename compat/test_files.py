"""The files that Suwi writes, read by Apache Kafka's own classes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from compat.directories import check_files, create, fill_transactions, records_in
from compat.java_producer import JavaProducer
from compat.kafka import run_java
from compat.test_tools import CONSUME
from tests.broker_process import BrokerProcess

DUMP = "org.apache.kafka.tools.DumpLogSegments"
TRANSACTION_FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"


def filled(tmp_path: Path) -> Path:
    """The data directory of a broker that stored two thousand records and stopped cleanly."""
    broker = BrokerProcess(
        tmp_path / "data", "log.segment.bytes=65536", "log.index.interval.bytes=512"
    ).start()
    producer = Producer(
        {"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 1}
    )
    for codec in range(2000):
        producer.produce("orders", key=str(codec), value=b"x" * 100)
        if codec % 20 == 0:
            producer.flush(10)
    assert producer.flush(30) == 0
    broker.stop()
    return tmp_path / "data"


def test_dump_log_reads_segments_indexes_and_snapshots(tmp_path: Path) -> None:
    data = filled(tmp_path)
    files = sorted((data / "orders-0").iterdir())
    by_suffix = {
        suffix: [str(f) for f in files if f.suffix == suffix]
        for suffix in (".log", ".index", ".timeindex", ".snapshot")
    }
    assert len(by_suffix[".log"]) > 2
    assert by_suffix[".snapshot"]
    logs = run_java(DUMP, "--deep-iteration", "--files", ",".join(by_suffix[".log"]))
    assert logs.count("isvalid: true") == logs.count("baseOffset:")
    offsets = [int(line.split()[2]) for line in logs.splitlines() if line.startswith("| offset:")]
    assert offsets == list(range(2000))
    for suffix in (".index", ".timeindex", ".snapshot"):
        printed = run_java(DUMP, "--files", ",".join(by_suffix[suffix]))
        for complaint in ("Mismatches", "Found", "ERROR", "corrupt", "Exception"):
            assert complaint not in printed, printed
    checked = run_java(DUMP, "--index-sanity-check", "--files", ",".join(by_suffix[".index"]))
    assert checked.count("passed sanity check") == len(by_suffix[".index"])
    snapshots = run_java(DUMP, "--files", ",".join(by_suffix[".snapshot"]))
    assert "producerId: 0 producerEpoch: 0" in snapshots


def test_kafkas_classes_read_our_checkpoints(tmp_path: Path) -> None:
    data = filled(tmp_path)
    printed = run_java(
        str(Path(__file__).with_name("ReadCheckpoints.java")),
        str(data / "orders-0" / "leader-epoch-checkpoint"),
        str(data / "orders-0" / "partition.metadata"),
        str(data / "replication-offset-checkpoint"),
        str(data / "recovery-point-offset-checkpoint"),
        str(data / "log-start-offset-checkpoint"),
    ).splitlines()
    assert "epoch 0 0" in printed
    assert "replication-offset-checkpoint orders-0 2000" in printed
    assert "recovery-point-offset-checkpoint orders-0 2000" in printed
    topic_id = (data / "orders-0" / "partition.metadata").read_text().split("topic_id: ")[1]
    assert f"topic id {topic_id.strip()}" in printed


# -- transactions ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """Stopped: four transactions of librdkafka are committed, four aborted; one of Java is open."""
    broker = BrokerProcess(
        tmp_path_factory.mktemp("transactions") / "data", "transaction.state.log.num.partitions=1"
    )
    with broker:
        create(broker.address, "orders")
        fill_transactions(broker.address, "orders")
        # The open one must not time out: a test starts the broker again.
        with JavaProducer(broker.address, "java", transaction_timeout_ms=900_000) as producer:
            producer.init().begin("orders", "committed").commit()
            producer.begin("orders", "open")
        broker.stop()
    return broker


def dump(broker: BrokerProcess, topic: str, suffix: str, *options: str) -> str:
    files = sorted(broker.partition_dir(topic).glob(f"*.{suffix}"))
    return run_java(DUMP, *options, "--files", ",".join(map(str, files)))


def test_dump_log_reads_markers(transactions: BrokerProcess) -> None:
    ends = [r.marker for r in records_in(transactions.partition_dir("orders")) if r.marker]
    assert ends == [*("COMMIT", "COMMIT", "ABORT", "ABORT") * 2, "COMMIT"]
    check_files(transactions.partition_dir("orders"))


def test_dump_log_reads_aborted_transactions_and_producers(transactions: BrokerProcess) -> None:
    aborted = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
        dump(transactions, "orders", "txnindex"),
    )
    markers = [r.offset for r in records_in(transactions.partition_dir("orders")) if r.marker]
    # Ten records and a marker each.
    expected = [(str(end - 10), str(end)) for end in (markers[i] for i in (2, 3, 6, 7))]
    assert [(first, last) for _, first, last, _ in aborted] == expected
    open_from = markers[-1] + 1
    producers = dict(
        re.findall(
            r"producerId: (\d+) .*currentTxnFirstOffset: OptionalLong(?:\.empty|\[(\d+)\])",
            dump(transactions, "orders", "snapshot"),
        )
    )
    assert sorted(producers.values()) == ["", "", str(open_from)], producers


def test_kafka_decodes_our_transaction_log(transactions: BrokerProcess) -> None:
    dumped = dump(transactions, "__transaction_state", "log", "--transaction-log-decoder")
    # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort.
    assert set(re.findall(r'"transactionStatus":(\d)', dumped)) == set("012345")


def test_kafkas_formatter_prints_our_transaction_log(transactions: BrokerProcess) -> None:
    with BrokerProcess(transactions.data, "transaction.state.log.num.partitions=1") as broker:
        printed = run_java(
            CONSUME,
            *("--bootstrap-server", broker.address, "--topic", "__transaction_state"),
            *("--partition", "0", "--offset", "earliest", "--timeout-ms", "10000"),
            *("--formatter", TRANSACTION_FORMATTER),
        )
        broker.stop()
    # It writes no line ends.
    records = json.loads("[" + printed[: printed.rindex("}") + 1].replace("}{", "},{") + "]")
    last: dict[str, Any] = {
        each["key"]["data"]["transactionalId"]: each["value"]["data"] for each in records
    }
    states = {name: value["transactionStatus"] for name, value in last.items()}
    assert states == {"orders-0": 4, "orders-1": 5, "java": 1}
    assert last["java"]["transactionPartitions"] == [{"topic": "orders", "partitionIds": [0]}]
    assert last["java"]["clientTransactionVersion"] == 2
