"""`--adopt`: topics are created for data that the metadata lacks, without loss."""

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from suwi.model.ids import NO_PRODUCER_ID
from suwi.records.builder import build_batch, build_marker
from suwi.records.record import MarkerType, Record
from suwi.transaction.transaction_metadata import prepared
from suwi.transaction.transaction_records import TRANSACTION_RECORDS
from suwi.wire.primitives import compact_string, uvarint
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.testing.clients import PATIENCE_S

ORDERS_ID = "4L6g3nShT-eMCtK--X86sw"
TRANSACTION_SETTINGS = (
    "transaction.state.log.num.partitions=1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=200",
)


def read(
    address: str, topic: str, isolation: str = "read_uncommitted"
) -> list[tuple[int, bytes | None]]:
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
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing came within the limit"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return found
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()


def write(address: str, topic: str, *values: str) -> None:
    """One batch for each value, from one new idempotent producer."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    failed = []
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failed.append(error)
        )
        assert producer.flush(PATIENCE_S) == 0
    assert failed == [None] * len(values)


def configs(address: str, topic: str) -> dict[str, str]:
    """The topic's own settings."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": address})
    answer = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return {name: entry.value for name, entry in answer.items() if entry.source == 1}


def foreign_directory(tmp_path: Path, *offsets: int) -> Path:
    """A partition directory with a batch at each of `offsets`, after an unclean shutdown."""
    data = tmp_path / "data"
    partition = data / "orders-0"
    partition.mkdir(parents=True)
    (data / "meta.properties").write_text(
        "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\nnode.id=0\n"
    )
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {ORDERS_ID}")
    batches = [
        build_batch([Record(value=b"%d" % n, timestamp=1)], base_offset=n, leader_epoch=0)
        for n in offsets
    ]
    (partition / f"{0:020d}.log").write_bytes(b"".join(batches))
    return data


@pytest.mark.slow
def test_new_producers_do_not_get_producer_ids_of_the_adopted_logs(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        write(broker.address, "orders", "a", "b", "c")
        broker.stop()
    (tmp_path / "data" / "suwi-metadata.sqlite").unlink()
    with BrokerProcess(tmp_path / "data", options=["--adopt"]) as broker:
        # With a producer id from the log these would be taken for retries of the first batches.
        write(broker.address, "orders", "d", "e", "f")
        assert [value for _, value in read(broker.address, "orders")] == [
            *(b"a", b"b", b"c"),
            *(b"d", b"e", b"f"),
        ]


def commit(address: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def committed(address: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "billing"})
    try:
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("is_whole", [True, False])
def test_groups_are_adopted_with_their_offsets_if_all_partitions_are_there(
    tmp_path: Path, is_whole: bool
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, "offsets.topic.num.partitions=5") as broker:
        write(broker.address, "orders", "a", "b", "c")
        commit(broker.address, 2)
        broker.stop()
    (data / "suwi-metadata.sqlite").unlink()
    if not is_whole:  # Where a group belongs depends on how many there are.
        shutil.rmtree(data / "__consumer_offsets-1")
    with BrokerProcess(data, options=["--adopt"]) as broker:
        assert committed(broker.address) == (2 if is_whole else OFFSET_INVALID)
        commit(broker.address, 3)
        broker.kill()
        broker.start()
        assert committed(broker.address) == 3
        names = {path.name for path in data.glob("__consumer_offsets-*")}
        assert len([name for name in names if name.count("-") == 1]) == (5 if is_whole else 50)
        policy = configs(broker.address, "__consumer_offsets")["cleanup.policy"]
        assert policy == "compact"


# -- transactions ----------------------------------------------------------------------------------


def begin_transaction(
    address: str, transactional_id: str, value: str, timeout_ms: int = 60_000
) -> Producer:
    """Write one record to `orders`; the transaction stays open."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def forget_metadata(data: Path) -> None:
    (data / "suwi-metadata.sqlite").unlink()


def write_marker(broker: BrokerProcess, coordinator_epoch: int) -> None:
    """Append a marker to `orders`, as a coordinator does that dies before it has written all."""
    (segment,) = broker.partition_dir("orders").glob("*.log")
    last, _ = list(broker.stored("orders"))[-1]
    marker = build_marker(
        MarkerType.COMMIT,
        producer_id=last.producer_id,
        producer_epoch=last.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=last.max_timestamp,
        base_offset=last.next_offset,
        leader_epoch=last.partition_leader_epoch,
    )
    with segment.open("ab") as log:
        log.write(marker)


def decide_to_commit(broker: BrokerProcess, transactional_id: str) -> None:
    """Append PrepareCommit to the log, as a coordinator does that dies before it writes markers."""
    (segment,) = broker.partition_dir("__transaction_state").glob("*.log")
    stored = list(broker.stored("__transaction_state"))
    decoded = [
        TRANSACTION_RECORDS.decode(record.key or b"", record.value)
        for _, records in stored
        for record in records
    ]
    found = [each for each in decoded if each and each.key.transactional_id == transactional_id][-1]
    last, _ = stored[-1]
    ongoing = found.value
    assert ongoing is not None
    value = prepared(
        ongoing,
        is_commit=True,
        version=1,
        next_producer_id=NO_PRODUCER_ID,
        now_ms=ongoing.last_update_ms,
    )
    batch = build_batch(
        [Record(key=found.key.encode(), value=value.encode(), timestamp=1)],
        base_offset=last.next_offset,
        leader_epoch=last.partition_leader_epoch,
    )
    with segment.open("ab") as log:
        log.write(batch)


def test_an_adopted_open_transaction_is_aborted_by_its_time_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        write(broker.address, "orders", "before")
        begin_transaction(broker.address, "slow", "open", timeout_ms=1000)
        write(broker.address, "orders", "after")
        broker.kill()
    forget_metadata(broker.data)
    with BrokerProcess(broker.data, *TRANSACTION_SETTINGS, options=["--adopt"]) as broker:
        command = Suwi(broker.address)
        while command.json("transactions", "describe", "slow")[0]["state"] != "CompleteAbort":
            time.sleep(0.1)
        seen = read(broker.address, "orders", "read_committed")
        assert [value for _, value in seen] == [b"before", b"after"]


def test_an_adopted_transactional_id_is_taken_over_and_its_transaction_aborted(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        begin_transaction(broker.address, "copier", "open")
        broker.kill()
    forget_metadata(broker.data)
    with BrokerProcess(broker.data, *TRANSACTION_SETTINGS, options=["--adopt"]) as broker:
        begin_transaction(broker.address, "copier", "again").commit_transaction(PATIENCE_S)
        seen = read(broker.address, "orders", "read_committed")
        assert [value for _, value in seen] == [b"again"]
        (found,) = Suwi(broker.address).json("transactions", "describe", "copier")
        # The one before had epoch 0, and its abort epoch 1.
        assert (found["producer_id"], found["producer_epoch"]) == (0, 2)


def test_an_adopted_transaction_that_was_decided_is_committed(tmp_path: Path) -> None:
    """Its markers go to topics that sort after `__transaction_state`, too."""
    with BrokerProcess(tmp_path / "data", *TRANSACTION_SETTINGS) as broker:
        begin_transaction(broker.address, "copier", "decided")
        broker.kill()
    decide_to_commit(broker, "copier")
    forget_metadata(broker.data)
    with BrokerProcess(broker.data, *TRANSACTION_SETTINGS, options=["--adopt"]) as broker:
        command = Suwi(broker.address)
        while command.json("transactions", "describe", "copier")[0]["state"] != "CompleteCommit":
            time.sleep(0.1)
        seen = read(broker.address, "orders", "read_committed")
        assert [value for _, value in seen] == [b"decided"]


@pytest.mark.parametrize("coordinator_epoch", [54, 2**31 - 1])
def test_an_adopted_transaction_is_completed_whatever_the_epoch_of_its_last_coordinator(
    tmp_path: Path, coordinator_epoch: int
) -> None:
    """Also if that is none of a coordinator: Kafka takes it from any client."""
    with BrokerProcess(tmp_path / "data", *TRANSACTION_SETTINGS) as broker:
        begin_transaction(broker.address, "copier", "decided")
        broker.kill()
    decide_to_commit(broker, "copier")
    write_marker(broker, coordinator_epoch)
    forget_metadata(broker.data)
    with BrokerProcess(broker.data, *TRANSACTION_SETTINGS, options=["--adopt"]) as broker:
        command = Suwi(broker.address)
        while command.json("transactions", "describe", "copier")[0]["state"] != "CompleteCommit":
            time.sleep(0.1)


def test_new_producers_do_not_get_producer_ids_of_adopted_transactional_ids(
    tmp_path: Path,
) -> None:
    """Not even of one that has written nothing."""
    with BrokerProcess(tmp_path / "data", *TRANSACTION_SETTINGS) as broker:
        settings = {"bootstrap.servers": broker.address, "transactional.id": "idle"}
        Producer(settings).init_transactions(PATIENCE_S)
        write(broker.address, "orders", "a")
        (idle,) = Suwi(broker.address).json("transactions", "describe", "idle")
        broker.stop()
    forget_metadata(broker.data)
    shutil.rmtree(broker.partition_dir("orders"))
    with BrokerProcess(broker.data, *TRANSACTION_SETTINGS, options=["--adopt"]) as broker:
        write(broker.address, "orders", "b")
        (header,) = broker.stored_batches("orders")
        assert header.producer_id > idle["producer_id"]


@pytest.mark.parametrize(
    "offsets",
    [(0, 1, 2, 7), *(pytest.param(few, marks=pytest.mark.slow) for few in [(0, 5), (3,)])],
)
def test_a_gap_left_by_compaction_loses_no_record(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    expected = [(offset, b"%d" % offset) for offset in offsets]
    with BrokerProcess(foreign_directory(tmp_path, *offsets), options=["--adopt"]) as broker:
        assert read(broker.address, "orders") == expected
        broker.kill()
        broker.start()
        assert read(broker.address, "orders") == expected


def test_a_gap_between_segments_that_compaction_left_loses_no_record(tmp_path: Path) -> None:
    data = foreign_directory(tmp_path, 0, 1)
    later = build_batch([Record(value=b"9", timestamp=1)], base_offset=9, leader_epoch=0)
    (data / "orders-0" / f"{7:020d}.log").write_bytes(later)
    expected = [(offset, b"%d" % offset) for offset in (0, 1, 9)]
    with BrokerProcess(data, options=["--adopt"]) as broker:
        assert read(broker.address, "orders") == expected
        broker.kill()
        broker.start()
        assert read(broker.address, "orders") == expected


def test_without_kafkas_metadata_adopted_topics_have_no_retention(tmp_path: Path) -> None:
    data = foreign_directory(tmp_path, 0, 1)
    with BrokerProcess(data, options=["--adopt"]) as broker:
        assert configs(broker.address, "orders") == {"retention.ms": "-1", "retention.bytes": "-1"}


def test_adopted_topics_keep_the_configuration_in_kafkas_metadata(tmp_path: Path) -> None:
    data = foreign_directory(tmp_path, 0, 1)
    topic_id = bytes.fromhex("e0bea0de74a14fe78c0ad2be5fce8eb3")
    other_id = bytes(15) + b"\1"
    write_metadata(
        data,
        _record(2, compact_string("orders") + other_id),
        _config("orders", "max.message.bytes", "77777"),
        _record(9, other_id),  # The topic was deleted and created again.
        _record(2, compact_string("orders") + topic_id),
        _config("orders", "cleanup.policy", "compact"),
        _config("orders", "retention.ms", "5"),
        _config("orders", "retention.ms", None),
        _config("orders", "flush.ms", "9", resource_type=4),
        _record(23, b""),
        _config("orders", "cleanup.policy", "delete"),
        _record(25, b""),
        _record(23, b""),
        _config("orders", "segment.ms", "1234"),
        _record(24, b""),
        _config("orders", "a.key.of.tomorrow", "1"),
    )
    with BrokerProcess(data, options=["--adopt"]) as broker:
        assert configs(broker.address, "orders") == {
            "cleanup.policy": "compact",
            "segment.ms": "1234",
        }


def write_metadata(data: Path, *records: bytes) -> None:
    """A snapshot with the first two records and a log with the others, as in Kafka's metadata."""
    directory = data / "__cluster_metadata-0"
    directory.mkdir()

    def batch(values: tuple[bytes, ...], base_offset: int) -> bytes:
        records = [Record(value=value, timestamp=1) for value in values]
        return bytes(build_batch(records, base_offset=base_offset, leader_epoch=1))

    (directory / f"{2:020d}-{1:010d}.checkpoint").write_bytes(batch(records[:2], 0))
    # The log still has records that are in the snapshot, and ends in a partly written batch.
    torn = batch(records[:1], len(records))[:-3]
    (directory / f"{0:020d}.log").write_bytes(
        batch((_config("orders", "flush.messages", "3"),) * 2, 0) + batch(records[2:], 2) + torn
    )


def _record(kind: int, body: bytes) -> bytes:
    return uvarint(1) + uvarint(kind) + uvarint(0) + body + b"\0"


def _config(topic: str, key: str, value: str | None, resource_type: int = 2) -> bytes:
    body = bytes([resource_type]) + compact_string(topic) + compact_string(key)
    return _record(4, body + compact_string(value))
