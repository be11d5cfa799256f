"""`suwi repair`: repairing the files of a stopped broker."""

from pathlib import Path

import pytest

from suwi.log import names
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi, write_lines

ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


@pytest.fixture
def offline() -> Suwi:
    return Suwi("nowhere.invalid:1")


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A partition with an unreadable partition.metadata."""
    (tmp_path / names.META_PROPERTIES).write_text("version=1\n")
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / names.PARTITION_METADATA).write_bytes(b"")
    return directory


def repair(directory: Path, topic_id: str = ID) -> list[object]:
    return ["repair", "partition-metadata", directory, "--topic-id", topic_id]


def test_the_topic_id_of_a_partition_is_set(offline: Suwi, orders: Path) -> None:
    for _ in range(2):
        assert offline.ok(*repair(orders)) == f"{orders} belongs to the topic {ID}\n"
    text = (orders / names.PARTITION_METADATA).read_text()
    assert text == f"version: 0\ntopic_id: {ID}"


def test_a_partition_with_a_topic_id_is_not_changed(offline: Suwi, orders: Path) -> None:
    offline.ok(*repair(orders))
    refusal = offline.refusal(*repair(orders, OTHER_ID))
    assert refusal == f"{orders} belongs to the topic {ID}: unchanged"


def test_an_invalid_id_is_refused(offline: Suwi, orders: Path) -> None:
    assert "not a topic id" in offline.misuse(*repair(orders, "orders"))


def test_a_directory_that_is_not_a_partition_is_refused(offline: Suwi, orders: Path) -> None:
    assert "not a partition" in offline.refusal(*repair(orders.parent))
    (orders.parent / names.META_PROPERTIES).unlink()
    assert "not a partition" in offline.refusal(*repair(orders))


@pytest.mark.slow
def test_a_partition_with_an_unreadable_topic_id_is_kept_offline_until_it_is_repaired(
    tmp_path: Path,
) -> None:
    """With a single broker that has also lost its checkpoints."""
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "orders")
        suwi.ok("topics", "create", "other")
        for topic in ("orders", "other"):
            suwi.ok("produce", topic, "--file", write_lines(tmp_path / "lines", "a", "b"))
        broker.kill()
    orders = data / "orders-0"
    (orders / names.PARTITION_METADATA).write_bytes(b"")
    (data / names.RECOVERY_POINTS).unlink(missing_ok=True)
    with BrokerProcess(data) as broker:
        suwi = Suwi(broker.address)
        assert suwi.ok("consume", "other", "--from-beginning", "--no-follow") == "a\nb\n"
        assert "orders-0: kafka storage error" in suwi.refusal("consume", "orders", "--no-follow")
        text = suwi.ok("topics", "describe", "orders", "other")
        assert text.count("kafka storage error") == 1
        (described,) = suwi.json("topics", "describe", "orders")
        assert described["partitions"][0]["problem"] == "kafka storage error"
        topic_id = described["topic_id"]
        command = f"suwi repair partition-metadata {orders} --topic-id {topic_id}"
        assert command in broker.log
        assert "stop it first" in suwi.refusal(*repair(orders))
        broker.stop()
    suwi.ok(*repair(orders, topic_id))
    with BrokerProcess(data) as broker:
        suwi = Suwi(broker.address)
        assert suwi.ok("consume", "orders", "--from-beginning", "--no-follow") == "a\nb\n"


def test_damaged_records_of_the_only_copy_are_given_up_on_request(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lines = [f"{number:0200d}" for number in range(30)]
    with BrokerProcess(data) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "orders", "--config", "segment.bytes=1024")
        for line in lines:
            suwi.ok("produce", "orders", "--file", write_lines(tmp_path / "lines", line))
    orders = data / "orders-0"
    closed = sorted(orders.glob("*.log"))[1]
    content = closed.read_bytes()
    victim = next(number for number, line in enumerate(lines) if line.encode() in content)
    position = content.index(lines[victim].encode())
    closed.write_bytes(content[:position] + b"?" + content[position + 1 :])
    offline = Suwi("nowhere.invalid:1")
    result = offline("repair", "segments", orders)
    assert result.exit_code == 1
    found = result.output
    assert f"orders-0 offsets {victim}-{victim}: 1 offsets" in found
    assert "nothing was changed" in found
    assert closed.read_bytes() != content
    given_up = offline.ok("repair", "segments", orders, "--give-up")
    assert "1 offsets were given up" in given_up
    assert "no damaged records" in offline.ok("repair", "segments", orders)
    with BrokerProcess(data) as broker:
        assert "in use by a broker" in offline.refusal("repair", "segments", orders)
        text = Suwi(broker.address).ok("consume", "orders", "--from-beginning", "--no-follow")
        assert text.splitlines() == [line for line in lines if line != lines[victim]]
