"""The files that Suwi writes, read by Apache Kafka's own classes."""

from pathlib import Path

from confluent_kafka import Producer

from compat.kafka import run_java
from tests.broker_process import BrokerProcess

DUMP = "org.apache.kafka.tools.DumpLogSegments"


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
