"""Offset, time and transaction index: lookup, and the contents of their files."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from suwi.env import Disk
from suwi.log.file_cache import FileCache
from suwi.log.indexes import OffsetIndex, TimeIndex
from suwi.log.txn_index import AbortedTxn, TxnIndex
from suwi.model.ids import Offset, ProducerId
from suwi.sim import SimDisk

BASE = Offset(1_000)


def _files() -> FileCache:
    disk = SimDisk()
    disk.make_dirs("/d")
    return FileCache(disk, 10)


def test_an_offset_entry_is_eight_bytes_relative_offset_and_position(
    disk_and_dir: tuple[Disk, str],
) -> None:
    disk, directory = disk_and_dir
    index = OffsetIndex(FileCache(disk, 10), f"{directory}/x.index", BASE, create=True)
    index.append(Offset(1_032), 17_275)
    index.append(Offset(1_040), 2**31 - 1)
    index.write_out()
    assert disk.read_bytes(f"{directory}/x.index") == struct.pack(
        ">iiii", 32, 17_275, 40, 2**31 - 1
    )


def test_a_time_entry_is_twelve_bytes_timestamp_and_relative_offset(
    disk_and_dir: tuple[Disk, str],
) -> None:
    disk, directory = disk_and_dir
    index = TimeIndex(FileCache(disk, 10), f"{directory}/x.timeindex", BASE, create=True)
    index.maybe_append(1_700_000_000_000, Offset(1_007))
    index.write_out()
    assert disk.read_bytes(f"{directory}/x.timeindex") == struct.pack(">qi", 1_700_000_000_000, 7)


def test_a_time_entry_that_is_not_newer_is_skipped() -> None:
    index = TimeIndex(_files(), "/d/t", BASE, create=True)
    index.maybe_append(50, Offset(1_001))
    index.maybe_append(50, Offset(1_002))
    index.maybe_append(49, Offset(1_003))
    index.maybe_append(51, Offset(1_004))
    assert [index.entry(i) for i in range(len(index))] == [(50, 1_001), (51, 1_004)]


def test_an_empty_index_points_to_the_start_of_its_segment() -> None:
    files = _files()
    offsets = OffsetIndex(files, "/d/o", BASE, create=True)
    times = TimeIndex(files, "/d/t", BASE, create=True)
    assert offsets.look_up(Offset(9_999)) == 0
    assert offsets.last_entry() == (BASE, 0)
    assert times.look_up(9_999) == (-1, BASE)
    assert times.last_entry() == (-1, BASE)


def test_a_half_entry_at_the_end_of_the_file_is_ignored_and_overwritten() -> None:
    files = _files()
    index = OffsetIndex(files, "/d/o", BASE, create=True)
    index.append(Offset(1_010), 100)
    index.write_out()
    files.get("/d/o").pwrite(b"\xff\xff\xff", 8)
    again = OffsetIndex(files, "/d/o", BASE, create=False)
    assert len(again) == 1
    again.append(Offset(1_020), 200)
    again.write_out()
    assert OffsetIndex(files, "/d/o", BASE, create=False).entry(1) == (1_020, 200)


def test_short_writes_do_not_lose_index_entries() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.faults.shorten(times=None)
    index = TimeIndex(FileCache(disk, 10), "/d/t", BASE, create=True)
    for i in range(1, 50):
        index.maybe_append(i, Offset(BASE + i))
    index.write_out()
    assert disk.size("/d/t") == 49 * 12
    again = TimeIndex(FileCache(disk, 10), "/d/t", BASE, create=False)
    assert again.last_entry() == (49, BASE + 49)


def _accumulated(steps: list[tuple[int, int]]) -> list[tuple[Offset, int]]:
    entries, offset, position = [], BASE, 0
    for offset_step, position_step in steps:
        offset, position = Offset(offset + offset_step), position + position_step
        entries.append((offset, position))
    return entries


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), max_size=700).map(_accumulated),
    st.lists(st.integers(0, 40_000), max_size=20),
    st.integers(0, 700),
    st.booleans(),
)
def test_an_offset_index_finds_what_a_list_would(
    entries: list[tuple[Offset, int]], asked: list[int], cut: int, written_out: bool
) -> None:
    index = OffsetIndex(_files(), "/d/o", BASE, create=True)
    for offset, position in entries:
        index.append(offset, position)
    if written_out:
        index.write_out()
    for distance in asked:
        wanted = Offset(BASE + distance)
        expected = [position for offset, position in entries if offset <= wanted]
        assert index.look_up(wanted) == (expected[-1] if expected else 0)
    if cut < len(entries):
        index.truncate(entries[cut][0])
        assert [index.entry(i) for i in range(len(index))] == entries[:cut]
        index.append(Offset(BASE + 10**6), 10**8)
        assert index.last_entry() == (BASE + 10**6, 10**8)


@given(
    st.lists(st.tuples(st.integers(-3, 9), st.integers(1, 9)), max_size=500),
    st.lists(st.integers(-5, 3_000), max_size=20),
    st.integers(0, 3_000),
    st.booleans(),
)
def test_a_time_index_finds_what_a_list_would(
    steps: list[tuple[int, int]], asked: list[int], cut: int, written_out: bool
) -> None:
    index = TimeIndex(_files(), "/d/t", BASE, create=True)
    expected: list[tuple[int, Offset]] = []
    timestamp, offset = 0, BASE
    for time_step, offset_step in steps:
        timestamp, offset = timestamp + time_step, Offset(offset + offset_step)
        index.maybe_append(timestamp, offset)
        if timestamp > (expected[-1][0] if expected else -1):
            expected.append((timestamp, offset))
    if written_out:
        index.write_out()
    assert [index.entry(i) for i in range(len(index))] == expected
    for wanted in asked:
        older = [entry for entry in expected if entry[0] < wanted]
        assert index.look_up(wanted) == (older[-1] if older else (-1, BASE))
    index.truncate(Offset(BASE + cut))
    kept = [entry for entry in expected if entry[1] < BASE + cut]
    assert [index.entry(i) for i in range(len(index))] == kept


# -- aborted transactions -----------------------------------------------------------------------


def _aborted(producer: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(ProducerId(producer), Offset(first), Offset(last), Offset(last + 1))


def test_a_transaction_entry_is_34_bytes_as_apache_kafka_writes_it() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    TxnIndex(disk, "/d/x").append(_aborted(7, 10, 20))
    assert disk.read_bytes("/d/x") == struct.pack(">hqqqq", 0, 7, 10, 20, 21)


def test_a_transaction_index_without_entries_has_no_file() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    index = TxnIndex(disk, "/d/x")
    assert index.entries() == []
    index.write_out()
    assert not disk.exists("/d/x")


def test_aborted_transactions_are_found_by_overlap_and_truncated_by_their_marker() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    index = TxnIndex(disk, "/d/x")
    for aborted in (_aborted(1, 0, 10), _aborted(2, 5, 20), _aborted(3, 21, 30)):
        index.append(aborted)
    assert [a.producer_id for a in index.between(Offset(11), Offset(21))] == [2]
    assert [a.producer_id for a in index.between(Offset(10), Offset(22))] == [1, 2, 3]
    index.truncate(Offset(20))
    assert [a.producer_id for a in TxnIndex(disk, "/d/x").entries()] == [1]


def test_short_writes_do_not_tear_a_transaction_entry() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.faults.shorten(times=None)
    index = TxnIndex(disk, "/d/x")
    for i in range(5):
        index.append(_aborted(i, i, i))
    assert TxnIndex(disk, "/d/x").entries() == index.entries()


def test_an_aborted_transaction_is_buffered_while_the_disk_is_full() -> None:
    disk = SimDisk(capacity_bytes=34)
    disk.make_dirs("/d")
    index = TxnIndex(disk, "/d/x")
    index.append(_aborted(1, 0, 1))
    index.append(_aborted(2, 2, 3))
    assert [a.producer_id for a in index.entries()] == [1, 2]
    disk.free()
    index.write_out()
    assert [a.producer_id for a in TxnIndex(disk, "/d/x").entries()] == [1, 2]
