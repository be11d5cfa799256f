"""`suwi dump`: the content of a broker's files, and damage in them."""

import json
import struct
from pathlib import Path

import pytest

from suwi.log.producer_snapshot import encode_snapshot
from suwi.log.producer_state import ProducedBatch, Producer
from suwi.model.ids import Offset, ProducerEpoch, ProducerId
from suwi.records.builder import build_batch, build_marker
from suwi.records.compression import Compression
from suwi.records.record import MarkerType, Record
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi, write_lines

TIME_MS = 1_700_000_000_000
TIME = "2023-11-14T22:13:20.000Z"
BASE = "00000000000000000010"


@pytest.fixture
def offline() -> Suwi:
    return Suwi("nowhere.invalid:1")


def batch(offset: int, *values: bytes | None, time_ms: int = TIME_MS, **how: object) -> bytes:
    records = [
        Record(timestamp=time_ms, key=b"k", value=value, headers=(("h", b"1"),)) for value in values
    ]
    return bytes(
        build_batch(records, base_offset=offset, leader_epoch=2, **how)  # type: ignore[arg-type]
    )


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment with base offset 10: two batches and an abort marker, with its indexes."""
    first = batch(10, b"a", b"b")
    second = batch(
        12,
        b"c",
        None,
        time_ms=TIME_MS + 1000,
        codec=Compression.GZIP,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        transactional=True,
    )
    marker = build_marker(
        MarkerType.ABORT,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=3,
        timestamp=TIME_MS + 2000,
        base_offset=14,
        leader_epoch=2,
    )
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(first + second + marker)
    path.with_suffix(".index").write_bytes(struct.pack(">ii", 3, len(first)))
    path.with_suffix(".timeindex").write_bytes(struct.pack(">qi", TIME_MS + 1000, 3))
    path.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 12, 14, 12))
    return path


def findings(suwi: Suwi, *paths: object) -> list[str]:
    """The damage found in files; also checks the exit code."""
    result = suwi("dump", *paths)
    found = [line[3:] for line in result.stdout.splitlines() if line.startswith("!! ")]
    assert result.exit_code == bool(found), result.output
    plural = "" if len(found) == 1 else "s"
    said = f"suwi: found {len(found)} problem{plural}\n" if found else ""
    assert result.stderr == said
    return found


# -- content ---------------------------------------------------------------------------------------


def test_a_segment_is_shown_with_batches_and_optionally_records(
    offline: Suwi, segment: Path
) -> None:
    first_bytes = len(batch(10, b"a", b"b"))
    sizes = [
        json.loads(line)["size"] for line in offline.ok("dump", segment, "--json").split("\n")[:-1]
    ]
    assert offline.ok("dump", segment, "--records").splitlines()[1:] == [
        f"offset: 10..11 position: 0 size: {sizes[0]} count: 2 epoch: 2 time: {TIME}",
        f"  offset: 10 time: {TIME} key: k value: a headers: h=1",
        f"  offset: 11 time: {TIME} key: k value: b headers: h=1",
        (
            f"offset: 12..13 position: {first_bytes} size: {sizes[1]} count: 2 epoch: 2 "
            "codec: gzip time: 2023-11-14T22:13:21.000Z producer: 7 epoch 1 sequence: 5..6 "
            "is: transactional"
        ),
        "  offset: 12 time: 2023-11-14T22:13:21.000Z key: k value: c headers: h=1",
        "  offset: 13 time: 2023-11-14T22:13:21.000Z key: k value: null headers: h=1",
        (
            f"offset: 14..14 position: {first_bytes + sizes[1]} size: {sizes[2]} count: 1 epoch: 2 "
            "time: 2023-11-14T22:13:22.000Z producer: 7 epoch 1 is: transactional,control"
        ),
        "  offset: 14 marker: ABORT coordinator_epoch: 3",
    ]


def test_index_entries_are_shown_as_kafka_shows_them(offline: Suwi, segment: Path) -> None:
    position = len(batch(10, b"a", b"b"))
    assert offline.ok("dump", segment.with_suffix(".index")).splitlines()[1:] == [
        f"offset: 13 position: {position}"
    ]
    assert offline.ok("dump", segment.with_suffix(".timeindex")).splitlines()[1:] == [
        "timestamp: 2023-11-14T22:13:21.000Z offset: 13"
    ]
    assert offline.ok("dump", segment.with_suffix(".txnindex")).splitlines()[1:] == [
        "producer_id: 7 first_offset: 12 last_offset: 14 last_stable_offset: 12"
    ]


def test_a_snapshot_shows_producers_and_open_transactions(offline: Suwi, tmp_path: Path) -> None:
    producer = Producer(
        ProducerId(7),
        ProducerEpoch(1),
        last_timestamp=TIME_MS,
        coordinator_epoch=3,
        txn_first_offset=Offset(12),
    )
    producer.batches.append(ProducedBatch(5, 6, Offset(13), 1, TIME_MS))
    idle = Producer(ProducerId(8), ProducerEpoch(0), last_timestamp=TIME_MS)
    path = tmp_path / f"{BASE}.snapshot"
    path.write_bytes(encode_snapshot([producer, idle]))
    assert offline.ok("dump", path).splitlines()[1:] == [
        (
            f"producer: 7 epoch: 1 sequence: 5..6 offset: 12..13 time: {TIME} coordinator_epoch: 3 "
            "transaction_since: offset 12"
        ),
        f"producer: 8 epoch: 0 time: {TIME}",
    ]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert findings(offline, path) == ["the checksum is wrong"]


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("leader-epoch-checkpoint", "0\n2\n12 13\n13 16\n", "epoch: 13 start_offset: 16"),
        (
            "replication-offset-checkpoint",
            "0\n1\npeter-test01 0 6\n",
            "topic: peter-test01 partition: 0 offset: 6",
        ),
        ("recovery-point-offset-checkpoint", "0\n1\nt 3 9\n", "topic: t partition: 3 offset: 9"),
        ("log-start-offset-checkpoint", "0\n1\nt 3 9\n", "topic: t partition: 3 offset: 9"),
        ("cleaner-offset-checkpoint", "0\n1\nt 3 9\n", "topic: t partition: 3 offset: 9"),
        ("cleaner-offset-checkpoint", "0\n0\n", "(empty)"),
        ("partition.metadata", "version: 0\ntopic_id: xyz", "topic_id: xyz"),
        (
            "meta.properties",
            "#Sun\nversion=1\ncluster.id=c\nnode.id=3\n",
            "node.id: 3",
        ),
        (".kafka_cleanshutdown", '{"version":0,"brokerEpoch":5}', "version: 0 brokerEpoch: 5"),
    ],
)
def test_the_small_files_of_a_directory_are_shown(
    offline: Suwi, tmp_path: Path, name: str, content: str, shown: str
) -> None:
    (tmp_path / name).write_text(content)
    assert offline.ok("dump", tmp_path / name).splitlines()[-1] == shown


def test_files_marked_for_deletion_are_known_too(offline: Suwi, segment: Path) -> None:
    deleted = segment.with_name(segment.name + ".deleted")
    segment.rename(deleted)
    index = segment.with_suffix(".index")
    index.rename(index.with_name(index.name + ".deleted"))
    assert findings(offline, deleted, index.with_name(index.name + ".deleted")) == []


def test_json_has_an_object_for_each_entry(offline: Suwi, segment: Path) -> None:
    found = offline.json_lines("dump", segment, segment.with_suffix(".index"), "--records")
    assert [entry["type"] for entry in found] == [
        "batch",
        "record",
        "record",
        "batch",
        "record",
        "record",
        "batch",
        "marker",
        "index",
    ]
    assert found[0]["file"] == str(segment)
    assert found[1] == {
        "file": str(segment),
        "type": "record",
        "offset": 10,
        "timestamp": TIME_MS,
        "key": "k",
        "value": "a",
        "headers": [{"name": "h", "value": "1"}],
    }
    assert found[3]["is_transactional"]
    assert (found[8]["offset"], found[8]["position"]) == (13, found[3]["position"])


def test_the_data_directory_of_a_broker_has_no_damage(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "lines", *(str(n) * 20 for n in range(50)))
    with BrokerProcess(tmp_path / "data") as broker:
        own = Suwi(broker.address)
        own.ok("topics", "create", "t", "-c", "segment.bytes=4000", "-c", "index.interval.bytes=1")
        for _ in range(5):
            own.ok("produce", "t", "--file", lines)
        broker.stop()
        shown = own.ok("dump", broker.data)
    for name in ("00000000000000000000.log", ".index", ".timeindex", ".snapshot"):
        assert name in shown
    for name in ("leader-epoch-checkpoint", "partition.metadata", "meta.properties"):
        assert name in shown
    assert "!!" not in shown


# -- damage ----------------------------------------------------------------------------------------


def damage(path: Path, position: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(new)] = new
    path.write_bytes(data)


def test_a_bad_checksum_is_reported_and_the_rest_shown(offline: Suwi, segment: Path) -> None:
    damage(segment, 70, b"\xff")
    (found,) = findings(offline, segment)
    assert found.startswith("position 0: bad CRC, ")
    assert "offset: 14..14" in offline("dump", segment).stdout


def test_unreadable_records_are_reported(offline: Suwi, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    whole = bytearray(batch(0, b"a"))
    whole[57:61] = struct.pack(">i", 2)  # claims two records
    path.write_bytes(whole)
    result = offline("dump", path, "--records")
    assert result.exit_code == 1
    assert "the records cannot be read" in result.stdout


def test_a_torn_tail_is_reported(offline: Suwi, segment: Path) -> None:
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-5])
    (found,) = findings(offline, segment)
    assert "torn, the batch at offset 14 has" in found
    segment.write_bytes(whole + b"abc")
    assert findings(offline, segment) == [
        f"position {len(whole)}: torn, 3 bytes of an incomplete batch header"
    ]


def test_reading_a_segment_ends_at_bytes_that_are_not_a_batch(offline: Suwi, segment: Path) -> None:
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"x" * 100)
    (found,) = findings(offline, segment)
    assert found.startswith(f"position {len(whole)}: not a batch (record format 120")


def test_preallocated_zeros_are_not_damage(offline: Suwi, segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + bytes(1000))
    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(80))
    time_index = segment.with_suffix(".timeindex")
    time_index.write_bytes(time_index.read_bytes() + bytes(120))
    assert findings(offline, segment, index, time_index) == []
    assert "preallocated" in offline.ok("dump", segment)
    assert "space for 10 more entries" in offline.ok("dump", index)


def test_decreasing_offsets_are_reported(offline: Suwi, tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(batch(5, b"a") + batch(5, b"b"))
    before, again = findings(offline, path)
    assert "offset 5 is below the file's 10" in before
    assert "offset 5 is not greater than 5" in again


@pytest.mark.parametrize(
    ("relative", "position", "problem"),
    [
        (3, 1, "no batch starts at position 1"),
        (1, None, "the batch at position"),
        (2, None, "no batch ends there"),
        (99, None, "no batch ends there"),
    ],
)
def test_an_index_entry_that_does_not_match_the_log_is_reported(
    offline: Suwi, segment: Path, relative: int, position: int | None, problem: str
) -> None:
    index = segment.with_suffix(".index")
    at = len(batch(10, b"a", b"b")) if position is None else position
    index.write_bytes(struct.pack(">ii", relative, at))
    (found,) = findings(offline, index)
    assert found.startswith(f"offset {10 + relative}: ")
    assert problem in found


def test_an_index_entry_for_several_batches_appended_together_is_valid(
    offline: Suwi, segment: Path
) -> None:
    segment.with_suffix(".index").write_bytes(struct.pack(">ii", 3, 0))
    assert findings(offline, segment.with_suffix(".index")) == []


def test_decreasing_and_incomplete_entries_are_reported(offline: Suwi, segment: Path) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes() * 2 + b"abc")
    assert findings(offline, index) == [
        "offset 13: it is not greater than the entry before",
        "3 bytes at the end are an incomplete entry of 8",
    ]


def test_a_time_index_that_hides_newer_records_is_reported(offline: Suwi, segment: Path) -> None:
    path = segment.with_suffix(".timeindex")
    path.write_bytes(struct.pack(">qi", TIME_MS, 3))
    (found,) = findings(offline, path)
    assert found == "offset 13: an earlier record is newer, 2023-11-14T22:13:21.000Z"
    path.write_bytes(struct.pack(">qi", TIME_MS, 50))
    assert findings(offline, path) == ["offset 60: it is beyond the end of the log"]


def test_an_index_without_its_log_is_shown_with_a_note(offline: Suwi, segment: Path) -> None:
    segment.unlink()
    assert "no .log file to compare with" in offline.ok("dump", segment.with_suffix(".index"))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("leader-epoch-checkpoint", "1\n0\n", "unknown version '1'"),
        ("leader-epoch-checkpoint", "0\n2\n1 0\n", "'2' entries are announced, 1 exist"),
        ("leader-epoch-checkpoint", "0\n2\n2 5\n1 6\n", "epoch 1: it is not greater than"),
        ("leader-epoch-checkpoint", "0\n1\n1 x\n", "not an epoch with its start offset"),
        ("leader-epoch-checkpoint", "0\n1\n1 23", "it may be truncated"),
        ("replication-offset-checkpoint", "0\n1\nt 0\n", "not a partition with its offset"),
        ("replication-offset-checkpoint", "0\n2\nt 0 1\nt 0 2\n", "it occurs twice"),
        ("partition.metadata", "version: 0\n", "topic_id is missing"),
        ("meta.properties", "version=1\ncluster.id=c\n", "node.id is missing"),
        ("meta.properties", "version=1\ncluster.id=c\nnode.id=1\nx\n", "has no '='"),
        (".kafka_cleanshutdown", "{", "not JSON"),
        (f"{BASE}.snapshot", "", "the file is too short"),
        (f"{BASE}.txnindex", "abc", "an incomplete entry"),
    ],
)
def test_damage_in_small_files_is_reported(
    offline: Suwi, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    (found,) = findings(offline, tmp_path / name)
    assert problem in found


def test_missing_and_unknown_files_do_not_prevent_showing_others(
    offline: Suwi, segment: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").touch()
    result = offline("dump", tmp_path / "gone.log", tmp_path / "notes.txt", segment)
    assert result.exit_code == 1
    assert f"{tmp_path}/gone.log: No such file or directory" in result.stderr
    assert f"{tmp_path}/notes.txt: not a known file of a broker" in result.stderr
    assert "offset: 10..11" in result.stdout


def test_the_content_of_records_cannot_manipulate_a_terminal(offline: Suwi, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch(0, b"\x1b[2J\n\xff"))
    assert "value: \\x1b[2J\\n\\xff" in offline.ok("dump", path, "--records")
