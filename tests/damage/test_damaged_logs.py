"""`suwi doctor --data` reads every batch of a stopped broker, and names what is wrong."""

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from suwi.log import names
from suwi.records.batch import batches
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.cli.test_doctor import findings
from tests.damage.test_damage_table import ORDERS, make_data

PATIENCE_S = 120


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("logs") / "data", 1)


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    shutil.copytree(stopped, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def suwi(monkeypatch: pytest.MonkeyPatch) -> Suwi:
    monkeypatch.setattr("suwi.admin.data_checks._FREE_MIN", 0)
    return Suwi("")


def segments(data: Path) -> list[Path]:
    found = sorted((data / ORDERS).glob("*.log"))
    assert len(found) >= 4
    return found


def remove_segment(log: Path) -> None:
    for path in log.parent.glob(f"{log.stem}.*"):
        if path.suffix != names.SNAPSHOT:
            path.unlink()


def base_of(log: Path) -> int:
    return int(log.stem)


def test_a_changed_byte_is_found_with_its_file_offset_and_position(suwi: Suwi, data: Path) -> None:
    log = segments(data)[1]
    content = bytearray(log.read_bytes())
    _, (position, header) = list(batches(content))[:2]
    content[position + header.size_bytes - 10] ^= 1
    log.write_bytes(content)
    (found,) = findings(suwi, "--data", data)
    assert (found["level"], found["about"]) == ("error", str(log))
    offsets = f"offsets {header.base_offset}-{header.last_offset}"
    assert found["problem"] == (
        f"{offsets}, position {position}: a batch does not match its checksum, or cannot be read"
    )
    assert f"suwi repair segments {data / ORDERS}" in found["advice"]


def test_a_missing_segment_is_found_between_its_neighbours(suwi: Suwi, data: Path) -> None:
    before, missing, after, *_ = segments(data)
    remove_segment(missing)
    (found,) = findings(suwi, "--data", data)
    assert found["about"] == str(before)
    assert found["problem"] == (
        f"offsets {base_of(missing)}-{base_of(after) - 1}: the records up to the next segment, "
        f"{after}, are missing"
    )


def test_a_gap_of_a_compacted_log_is_legal(suwi: Suwi, data: Path) -> None:
    remove_segment(segments(data)[1])
    (data / names.CLEANER_OFFSETS).write_text("0\n1\norders 0 16\n")
    assert findings(suwi, "--data", data, exit_code=0) == []


def test_a_gap_below_the_log_start_offset_is_legal(suwi: Suwi, data: Path) -> None:
    _, missing, after, *_ = segments(data)
    remove_segment(missing)
    (data / names.LOG_START_OFFSETS).write_text(f"0\n1\norders 0 {base_of(after) + 1}\n")
    assert findings(suwi, "--data", data, exit_code=0) == []


def test_segments_that_overlap_are_found(suwi: Suwi, data: Path) -> None:
    first, second, *_ = segments(data)
    size_bytes = first.stat().st_size
    first.write_bytes(first.read_bytes() + second.read_bytes())
    (found,) = findings(suwi, "--data", data)
    assert found["about"] == str(first)
    assert found["problem"] == (
        f"bytes after offset {base_of(second) - 1}, position {size_bytes}: "
        "bytes that are no batch of this segment follow its last one"
    )


def test_a_cut_segment_is_found_unless_it_was_not_synced(suwi: Suwi, data: Path) -> None:
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:-10])
    (found, *_) = findings(suwi, "--data", data)
    assert found["about"] == str(last)
    assert found["problem"].startswith("offsets ")
    (data / names.CLEAN_SHUTDOWN).unlink()
    (data / names.RECOVERY_POINTS).write_text(f"0\n1\norders 0 {base_of(last)}\n")
    for snapshot in (data / ORDERS).glob(f"*{names.SNAPSHOT}"):
        snapshot.unlink()
    assert not [found for found in findings(suwi, "--data", data) if found["level"] == "error"]


def test_long_checks_show_their_progress(
    suwi: Suwi, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suwi.admin.log_checks._PROGRESS_EVERY_MS", 0)
    ended = suwi("doctor", "--data", data)
    assert ended.exit_code == 0
    assert "checked " in ended.stderr
    assert " of " in ended.stderr


@pytest.mark.slow
def test_a_missing_transaction_index_is_found_and_its_remedy_works(
    suwi: Suwi, tmp_path: Path
) -> None:
    """Where nothing was aborted there is no such file, so a start cannot notice it."""
    data = tmp_path / "data"
    with BrokerProcess(data, "log.segment.bytes=4096") as broker:
        Suwi(broker.address).ok("topics", "create", "orders")
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "mill"})
        producer.init_transactions(PATIENCE_S)
        for number in range(12):
            producer.begin_transaction()
            for _ in range(number % 3):  # Some have no records.
                producer.produce("orders", b"%01000d" % number)
            if number % 4 == 1:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.flush(PATIENCE_S)
                producer.abort_transaction(PATIENCE_S)
        del producer
        broker.stop()
    indexes = sorted((data / ORDERS).glob(f"*{names.TXN_INDEX}"))
    whole = [path.read_bytes() for path in indexes]
    assert len(whole) > 1
    assert suwi.ok("doctor", "--data", data) == "nothing to complain about\n"
    for path in indexes:
        path.unlink()
    found = findings(suwi, "--data", data)
    assert [each["about"] for each in found] == [str(path) for path in indexes]
    assert all("consumers read aborted records as committed" in each["problem"] for each in found)
    epochs = data / ORDERS / names.LEADER_EPOCHS
    assert f"remove {epochs}" in found[0]["advice"]
    epochs.unlink()
    with BrokerProcess(data) as broker:
        Suwi(broker.address).ok("topics", "describe", "orders")
        broker.stop()
    assert [path.read_bytes() for path in indexes] == whole
    assert suwi.ok("doctor", "--data", data) == "nothing to complain about\n"


def test_a_damaged_commit_is_not_taken_for_a_committed_offset(tmp_path: Path) -> None:
    """After a clean stop no batch is checked; the coordinator reads all of them."""
    data = tmp_path / "data"
    here = [TopicPartition("orders", 0)]
    with BrokerProcess(data, "offsets.topic.num.partitions=1") as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "orders")
        settings = {"bootstrap.servers": broker.address, "group.id": "billing"}
        consumer = Consumer(settings)
        for offset in (1_000_001, 1_000_002):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        consumer.close()
        broker.stop()
        (log,) = (data / "__consumer_offsets-0").glob("*.log")
        content = log.read_bytes()
        assert content.count((1_000_002).to_bytes(8)) == 1
        log.write_bytes(content.replace((1_000_002).to_bytes(8), (777).to_bytes(8)))
        broker.start()
        consumer = Consumer(settings | {"bootstrap.servers": broker.address})
        (found,) = consumer.committed(here, PATIENCE_S)
        consumer.close()
        assert found.offset == 1_000_001
        until_s = time.monotonic() + PATIENCE_S
        while "damaged batch" not in Suwi(broker.address)("status").stdout:
            assert time.monotonic() < until_s
            time.sleep(0.2)
