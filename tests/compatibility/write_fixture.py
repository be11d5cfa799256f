"""Write the fixture of a release: data directories of brokers, and what the command line says.

Run with the release's sources, in this directory's repository:

    git worktree add /tmp/old a174b75
    PYTHONPATH=/tmp/old/src:. python tests/compatibility/write_fixture.py a174b75

Three clusters: one broker that stopped cleanly, one that was killed, and three brokers in one
process that were killed. The archive also has `NAME.json` for each: what `observe` returned.
"""

import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.broker_process import BrokerProcess
from tests.compatibility.observe import dump, observe, records, run

_DATA = Path(__file__).parent / "data"
_SETTINGS = ("log.cleaner.backoff.ms=200", "log.flush.start.offset.checkpoint.interval.ms=200")
_KEYS = 5
_WAIT_S = 30


def produce(address: str, topic: str, partition: int, first: int, count: int, codec: str) -> None:
    """One idempotent producer, four batches."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 50,
        }
    )
    for batch in range(4):
        for n in range(first + batch * count, first + (batch + 1) * count):
            producer.produce(
                topic,
                key=f"key-{n % _KEYS}",
                value=f"{topic} {n} ".encode() * 6,
                partition=partition,
                headers=[("number", str(n).encode())],
            )
        assert producer.flush(_WAIT_S) == 0


def fill(address: str) -> None:
    run(
        address, "topics", "create", "orders", "--partitions", "2", "--config", "segment.bytes=2048"
    )
    for partition, codec in ((0, "none"), (1, "gzip")):
        produce(address, "orders", partition, 0, 10, codec)
        produce(address, "orders", partition, 40, 10, codec)
    trim(address, "orders", 0, 15)
    run(
        address, "topics", "create", "accounts", "--partitions", "1",
        "--config", "cleanup.policy=compact", "--config", "segment.bytes=1024",
        "--config", "min.cleanable.dirty.ratio=0.01",
    )  # fmt: skip
    produce(address, "accounts", 0, 0, 10, "none")
    wait_for_compaction(address)
    run(address, "topics", "create", "again", "--partitions", "1")
    produce(address, "again", 0, 0, 3, "none")
    run(address, "topics", "delete", "again", "--yes")
    run(address, "topics", "create", "again", "--partitions", "1")
    produce(address, "again", 0, 100, 1, "none")
    run(address, "configs", "set", "broker", "all", "log.retention.ms=-1")
    run(address, "configs", "set", "topic", "again", "retention.ms=-1")
    run(address, "users", "add", "alice", "--password-file", "-", stdin="secret\n")


def trim(address: str, topic: str, partition: int, offset: int) -> None:
    """DeleteRecords: the log starts in the middle of a batch."""
    admin = AdminClient({"bootstrap.servers": address})
    (future,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    future.result(_WAIT_S)


def wait_for_compaction(address: str) -> None:
    for _ in range(10 * _WAIT_S):
        if len(records(address, "accounts")) < 30:
            return
        time.sleep(0.1)
    raise AssertionError("not compacted")


def write(parent: Path, name: str, options: tuple[str, ...], *, is_clean: bool) -> None:
    with BrokerProcess(parent / name, *_SETTINGS, options=options) as broker:
        fill(broker.address)
        said = observe(broker.address)
        if is_clean:
            broker.stop()
            said["dump"] = dump(broker.data)
        (parent / f"{name}.json").write_text(json.dumps(said, indent=1))


def main(release: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        parent = Path(temporary)
        write(parent, "clean", (), is_clean=True)
        write(parent, "killed", (), is_clean=False)
        write(parent, "three-killed", ("--brokers", "3"), is_clean=False)
        with tarfile.open(_DATA / f"{release}.tar.gz", "w:gz") as archive:
            for name in ("clean", "killed", "three-killed"):
                archive.add(parent / name, name)
                archive.add(parent / f"{name}.json", f"{name}.json")


if __name__ == "__main__":
    main(sys.argv[1])
