"""What survives on a simulated disk, and how its calls fail."""

import errno
import os
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suwi.env import AlreadyLocked
from suwi.sim import ManualClock, Revoked, SimDisk, SimRandom
from suwi.sim.volume import SECTOR_BYTES

_SEEDS = range(200)


def _disk(seed: int = 0, **options: int) -> SimDisk:
    disk = SimDisk(random=SimRandom(seed), **options)  # type: ignore[arg-type]
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


def _append(disk: SimDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True)
    file.pwrite(data, file.size())
    if sync:
        file.sync()
    file.close()


def test_a_process_crash_keeps_written_bytes() -> None:
    disk = _disk()
    _append(disk, "/d/log", b"written, never synced")
    after = disk.crash()
    assert after.read_bytes("/d/log") == b"written, never synced"
    assert after.boot_id() == disk.drive.boot_id


def test_a_power_loss_without_tearing_keeps_exactly_what_was_synced() -> None:
    disk = _disk()
    _append(disk, "/d/log", b"safe", sync=True)
    disk.sync_dir("/d")
    _append(disk, "/d/log", b" and not")
    _append(disk, "/d/unnamed", b"synced, but its directory was not", sync=True)
    before = disk.boot_id()
    after = disk.power_loss(tear=False)
    assert after.list_dir("/d") == ["log"]
    assert after.read_bytes("/d/log") == b"safe"
    assert after.boot_id() != before


def _outcomes(scenario: Callable[[SimDisk], None]) -> set[tuple[tuple[str, bytes], ...]]:
    found = set()
    for seed in _SEEDS:
        disk = _disk(seed)
        scenario(disk)
        after = disk.power_loss()
        names = after.list_dir("/d")
        found.add(tuple((name, after.read_bytes(f"/d/{name}")) for name in names))
    return found


def test_a_torn_tail_is_lost_whole_cut_or_full_of_holes() -> None:
    first, second = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES

    def scenario(disk: SimDisk) -> None:
        _append(disk, "/d/log", b"", sync=True)
        disk.sync_dir("/d")
        _append(disk, "/d/log", first)
        _append(disk, "/d/log", second)

    contents = {outcome[0][1] for outcome in _outcomes(scenario)}
    assert {b"", first, first + second} <= contents
    assert bytes(SECTOR_BYTES) + second in contents, "a later sector may arrive before an earlier"
    assert any(0 < len(content) < SECTOR_BYTES for content in contents)


def test_an_unsynced_rename_shows_the_old_or_the_new_name_never_both() -> None:
    def scenario(disk: SimDisk) -> None:
        _append(disk, "/d/x.tmp", b"new", sync=True)
        disk.sync_dir("/d")
        disk.rename("/d/x.tmp", "/d/x")

    assert _outcomes(scenario) == {(("x.tmp", b"new"),), (("x", b"new"),)}


def test_an_unsynced_removal_may_be_undone() -> None:
    def scenario(disk: SimDisk) -> None:
        _append(disk, "/d/x", b"content", sync=True)
        disk.sync_dir("/d")
        disk.remove("/d/x")

    assert _outcomes(scenario) == {(), (("x", b"content"),)}


def test_write_atomically_leaves_the_old_or_the_new_content_wherever_it_is_interrupted() -> None:
    found = set()
    for calls in range(7):
        for seed in _SEEDS:
            disk = _disk(seed)
            disk.write_atomically("/d/x", b"old")
            disk.faults.crash_after(calls)
            try:
                disk.write_atomically("/d/x", b"new!")
            except Revoked:
                pass
            found.add(disk.power_loss().read_bytes("/d/x"))
    assert found == {b"old", b"new!"}


def test_syncing_a_directory_saves_a_rename_out_of_another_one() -> None:
    disk = _disk()
    disk.make_dirs("/e")
    disk.sync_dir("/")
    _append(disk, "/d/x", b"moved", sync=True)
    disk.rename("/d/x", "/e/x")
    disk.sync_dir("/e")
    after = disk.power_loss(tear=False)
    assert (after.list_dir("/d"), after.list_dir("/e")) == ([], ["x"])


_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3 * SECTOR_BYTES)),
        st.tuples(st.just("sync"), st.just(0)),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(st.integers(0, 1 << 32), _CHANGES)
def test_synced_bytes_survive_and_the_rest_is_as_written_or_zero(
    seed: int, changes: list[tuple[str, int]]
) -> None:
    disk = _disk(seed)
    file = disk.open("/d/log", create=True)
    disk.sync_dir("/d")
    written, synced = b"", 0
    for number, (kind, size_bytes) in enumerate(changes):
        if kind == "append":
            data = bytes([number + 1]) * size_bytes
            file.pwrite(data, len(written))
            written += data
        else:
            file.sync()
            synced = len(written)
    left = disk.power_loss().read_bytes("/d/log")
    assert left[:synced] == written[:synced]
    assert len(left) <= len(written)
    assert all(byte in (0, expected) for byte, expected in zip(left, written, strict=False))


@settings(deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_synced_bytes_that_nothing_touched_survive_overwrites_and_truncation(
    seed: int, data: st.DataObject
) -> None:
    disk = _disk(seed)
    file = disk.open("/d/log", create=True)
    disk.sync_dir("/d")
    file.pwrite(b"s" * 2000, 0)
    file.sync()
    untouched = [True] * 2000
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, 2500))
        if data.draw(st.booleans()):
            file.truncate(position)
            untouched[position:] = [False] * len(untouched[position:])
        else:
            end = position + file.pwrite(b"w" * data.draw(st.integers(1, 700)), position)
            untouched[position:end] = [False] * len(untouched[position:end])
    left = disk.power_loss().read_bytes("/d/log")
    assert all(left[at] == ord("s") for at, kept in enumerate(untouched) if kept)


def test_every_call_of_a_dead_incarnation_raises_and_changes_nothing() -> None:
    disk = _disk()
    file = disk.open("/d/log", create=True)
    lock = disk.lock("/d/.lock")
    after = disk.crash()
    for call in (
        lambda: file.pwrite(b"late", 0),
        lambda: file.truncate(9),
        file.sync,
        file.close,
        file.size,
        lock.release,
        lambda: disk.open("/d/new", create=True),
        lambda: disk.remove("/d/log"),
        lambda: disk.write_atomically("/d/x", b""),
        lambda: disk.exists("/d"),
        lambda: disk.list_dir("/d"),
    ):
        with pytest.raises(Revoked):
            call()  # type: ignore[no-untyped-call]
    assert after.list_dir("/d") == [".lock", "log"]
    assert after.read_bytes("/d/log") == b""


def test_the_lock_of_a_dead_process_is_free() -> None:
    disk = _disk()
    disk.lock("/d/.lock")
    with pytest.raises(AlreadyLocked):
        disk.lock("/d/.lock")
    disk.crash().lock("/d/.lock")


def test_a_planned_error_hits_the_matching_calls_only() -> None:
    disk = _disk()
    disk.faults.fail("write", errno.EIO, path="*/b.log", skip=1)
    a, b = disk.open("/d/a.log", create=True), disk.open("/d/b.log", create=True)
    assert a.pwrite(b"1", 0) == b.pwrite(b"1", 0) == 1
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        b.pwrite(b"2", 1)
    assert a.pwrite(b"2", 1) == b.pwrite(b"2", 1) == 1


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    disk = _disk(capacity_bytes=10)
    file = disk.open("/d/log", create=True)
    assert file.pwrite(b"x" * 8, 0) == 8
    assert file.pwrite(b"x" * 8, 8) == 2
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.pwrite(b"x", 10)
    assert file.pwrite(b"y", 0) == 1, "overwriting needs no space"
    disk.remove("/d/log")
    assert disk.free_bytes("/d") == 0, "an open file keeps its space"
    file.close()
    assert disk.free_bytes("/d") == 10


def test_a_short_write_takes_some_of_the_bytes() -> None:
    disk = _disk()
    disk.faults.shorten()
    file = disk.open("/d/log", create=True)
    taken = file.pwrite(b"0123456789", 0)
    assert 0 < taken < 10
    assert file.pread(10, 0) == b"0123456789"[:taken]
    assert file.pwrite(b"0123456789", 0) == 10


def test_after_a_failed_sync_a_second_one_succeeds_without_saving_the_bytes() -> None:
    found = set()
    for seed in _SEEDS:
        disk = _disk(seed)
        _append(disk, "/d/log", b"", sync=True)
        disk.sync_dir("/d")
        file = disk.open("/d/log")
        file.pwrite(b"data", 0)
        disk.faults.fail("sync")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
        assert file.pread(4, 0) == b"data"
        file.sync()
        found.add(disk.power_loss(tear=False).read_bytes("/d/log"))
    assert {b"", b"data"} <= found


def test_a_crash_in_the_middle_of_a_write_leaves_some_of_it() -> None:
    found = set()
    for seed in _SEEDS:
        disk = _disk(seed)
        file = disk.open("/d/log", create=True)
        disk.faults.crash_after(0)
        with pytest.raises(Revoked):
            file.pwrite(b"abc", 0)
        found.add(disk.crash().read_bytes("/d/log"))
    assert found == {b"", b"a", b"ab", b"abc"}


def test_files_carry_the_time_of_their_last_write() -> None:
    clock = ManualClock(1_000)
    disk = SimDisk(clock=clock)
    file = disk.open("/log", create=True)
    clock.advance(500)
    file.pwrite(b"x", 0)
    assert disk.modified_ms("/log") == 1_500


def test_the_same_seed_tears_the_same_way() -> None:
    def left(seed: int) -> bytes:
        disk = _disk(seed)
        _append(disk, "/d/log", b"", sync=True)
        disk.sync_dir("/d")
        _append(disk, "/d/log", bytes(range(256)) * 20)
        return disk.power_loss().read_bytes("/d/log")

    assert [left(seed) for seed in range(20)] == [left(seed) for seed in range(20)]
