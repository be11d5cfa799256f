"""The state of a log after it was closed, killed, or left with damaged or missing files."""

import dataclasses
from collections.abc import Callable

import pytest

from suwi.env import LocalDisk
from suwi.log import names
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.record import MarkerType
from tests.log.kit import NOW_MS, Bench, batch_of, batches_in, values_in

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def _filled(bench: Bench | None = None, count: int = 60) -> Bench:
    """Several segments, epochs, a producer, a committed and an aborted transaction."""
    bench = bench or Bench()
    bench.config = SMALL
    for i in range(count):
        bench.epoch = i // 25
        bench.append(batch_of(producer=(7, 0, i), timestamps=[NOW_MS + i]))
        if i % 20 == 5:
            bench.append(batch_of(producer=(100 + i, 0, 0), transactional=True))
            bench.append_marker(100 + i, 0, MarkerType.ABORT if i % 40 == 5 else MarkerType.COMMIT)
    assert len(bench.log.segments()) >= 5
    return bench


def _state(bench: Bench) -> dict[str, object]:
    """The complete visible state of a log."""
    log = bench.log
    return {
        "values": values_in(log),
        "end": log.end_offset,
        "epochs": log.epochs.entries(),
        "producers": {
            p.producer_id: (p.epoch, p.last_sequence, p.txn_first_offset)
            for p in log.producers.all()
        },
        "aborted": log.aborted_between(log.start_offset, log.end_offset),
        "times": [
            None if part is None else part.position
            for part in (log.batch_at_time(NOW_MS + i) for i in range(0, 70, 3))
        ],
        "found": [
            None if part is None else (part.path, part.position)
            for part in (
                log.read(Offset(offset), 1, log.end_offset, whole_batch=True)
                for offset in range(log.start_offset, log.end_offset)
            )
        ],
    }


def test_a_log_is_the_same_after_a_clean_shutdown(bench: Bench) -> None:
    _filled(bench)
    before = _state(bench)
    bench.reopen()
    assert _state(bench) == before
    assert bench.log.recovery_point == bench.log.end_offset


def test_a_log_is_the_same_after_a_process_crash() -> None:
    bench = _filled()
    before = _state(bench)
    bench.crash()
    assert _state(bench) == before


@pytest.mark.parametrize("start_again", [Bench.reopen, Bench.crash, Bench.recover])
def test_t18_after_a_restart_no_open_transaction_and_no_aborted_record_is_stable(
    start_again: Callable[[Bench], object],
) -> None:
    """A snapshot does not say which markers are committed. What is stable too early for that is
    decided: markers are written after the decision is committed, and an aborted one is known."""
    bench = Bench()
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    marker_offset = bench.append_marker(7, 0, MarkerType.ABORT).base_offset
    bench.append(batch_of(producer=(8, 0, 0), transactional=True))
    bench.log.roll(NOW_MS)
    bench.append(batch_of(producer=(9, 0, 0), transactional=True))
    start_again(bench)
    log = bench.log
    assert log.producers.last_stable_offset(Offset(0), log.end_offset) == marker_offset + 1
    # The marker may not be committed: what is read below it is known to be aborted.
    assert log.producers.last_stable_offset(Offset(0), marker_offset) <= marker_offset
    assert [each.producer_id for each in log.aborted_between(Offset(0), marker_offset)] == [7]


def test_a_log_is_the_same_after_a_full_recovery(bench: Bench) -> None:
    _filled(bench)
    before = _state(bench)
    bench.recover()
    assert _state(bench) == before


def test_one_open_file_at_a_time_is_enough(bench: Bench) -> None:
    bench.open_files_max = 1
    _filled(bench)
    before = _state(bench)
    bench.recover()
    assert _state(bench) == before


def test_opening_a_clean_log_reads_only_its_end() -> None:
    """Earlier a topic without idempotent producers had no snapshot, and all headers were read."""
    bench = Bench(config=SMALL)
    bench.append_many(200)
    bench.close()
    for segment in bench.log.segments()[:-1]:
        bench.sim.faults.fail("read", path=segment.log_path, times=None)
    assert bench.open().end_offset == 200


def test_recovery_reads_nothing_before_the_recovery_points_segment() -> None:
    bench = Bench(config=SMALL)
    bench.append_many(100)
    bench.sync()
    old = [segment.log_path for segment in bench.log.segments()[:-2]]
    bench.append_many(100)
    bench.disk = bench.sim.crash()
    for path in old:
        bench.sim.faults.fail("read", path=path, times=None)
    assert bench.open(clean=False, recovery_point=100).end_offset == 200


def test_a_tail_that_was_truncated_after_a_clean_shutdown_is_detected(bench: Bench) -> None:
    """Otherwise batches would be appended to it, and everything after it lost."""
    bench.append_many(20)
    bench.close()
    file = bench.disk.open(bench.path(0))
    file.truncate(file.size() - 5)
    file.close()
    bench.open()
    assert bench.log.end_offset == 19
    bench.append_many(5)
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == list(range(24))


def test_garbage_after_a_clean_shutdown_is_truncated(bench: Bench) -> None:
    bench.append_many(20)
    bench.close()
    file = bench.disk.open(bench.path(0))
    file.pwrite(b"\xab" * 300, file.size())
    file.close()
    bench.open()
    assert bench.log.end_offset == 20
    bench.append()
    assert len(bench.headers()) == 21


# -- missing or damaged files ---------------------------------------------------------------------


def _files_beside_the_log() -> list[str]:
    bench = _filled()
    bench.close()
    return [name for name in bench.names() if not name.endswith(names.LOG)]


_AUXILIARY = _files_beside_the_log()


@pytest.mark.parametrize("name", _AUXILIARY)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_any_file_beside_the_log_may_be_missing(name: str, clean: bool) -> None:
    bench = _filled()
    before = _state(bench)
    bench.close()
    if name.endswith(names.TXN_INDEX) and clean:
        pytest.skip("where there is no .txnindex after a clean stop, nothing was aborted")
    bench.disk.remove(f"{bench.dir}/{name}")
    bench.open(clean=clean)
    assert _state(bench) == before
    bench.append()
    bench.reopen()
    assert bench.log.end_offset == before["end"] + 1  # type: ignore[operator]


@pytest.mark.parametrize("name", _AUXILIARY)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_any_file_beside_the_log_may_be_empty_or_truncated(name: str, clean: bool) -> None:
    for keep in (0.0, 0.3, 0.99):
        bench = _filled()
        before = _state(bench)
        bench.close()
        if name.endswith(names.TXN_INDEX) and clean and keep == 0.0:
            continue
        file = bench.disk.open(f"{bench.dir}/{name}")
        file.truncate(int(file.size() * keep))
        file.close()
        bench.open(clean=clean)
        assert _state(bench) == before


@pytest.mark.parametrize(
    "name",
    [n for n in _AUXILIARY if n.endswith((names.OFFSET_INDEX, names.TIME_INDEX, names.SNAPSHOT))],
)
@pytest.mark.parametrize("step", [61, pytest.param(7, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_an_index_or_snapshot_changes_what_is_read(name: str, step: int) -> None:
    """One bit of each `step` bits."""
    bench = _filled()
    before = _state(bench)
    bench.close()
    path = f"{bench.dir}/{name}"
    whole = bench.disk.read_bytes(path)
    for bit in range(0, len(whole) * 8, step):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        bench.disk.write_atomically(path, bytes(damaged))
        bench.open()
        assert _state(bench) == before
        bench.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\xff" * 64, b"0\n1\n5", b"garbage\n"])
def test_damaged_leader_epochs_are_rebuilt_from_the_log(content: bytes) -> None:
    bench = _filled()
    before = _state(bench)
    bench.close()
    bench.disk.write_atomically(f"{bench.dir}/{names.LEADER_EPOCHS}", content)
    bench.open()
    assert _state(bench) == before


def test_all_files_beside_the_log_may_be_missing_at_once(bench: Bench) -> None:
    _filled(bench)
    before = _state(bench)
    bench.close()
    for name in bench.names():
        if not name.endswith(names.LOG):
            bench.disk.remove(f"{bench.dir}/{name}")
    bench.open()
    assert _state(bench) == before


def test_a_negative_position_in_an_index_before_the_recovery_point_stops_no_recovery() -> None:
    """Such a read fails as one of a broken disk does, which takes the data directory offline."""
    bench = _filled()
    bench.sync()
    before = values_in(bench.log)
    index = bench.log.segments()[-2].offset_index
    bench.sim.overwrite(index.path, b"\xff", 8 * len(index) - 4)
    bench.crash()
    assert values_in(bench.log) == before


def test_a_closed_segment_with_one_large_batch_has_an_empty_index_that_is_not_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.append(batch_of(value=b"x" * 100_000))
    bench.log.roll(NOW_MS)
    bench.reopen()
    assert len(bench.log.segments()[0].offset_index) == 0
    assert [record.message for record in caplog.records if "index" in record.message] == []
    bench.close()
    bench.disk.remove(bench.path(0, names.TIME_INDEX))
    bench.open()
    assert "index missing, rebuilding it" in caplog.messages


def test_an_index_that_is_damaged_while_the_log_is_open_is_rebuilt() -> None:
    bench = Bench(config=dataclasses.replace(TopicConfig(), index_interval_bytes=50))
    bench.append_many(100)
    bench.reopen()
    path = bench.path(0, names.OFFSET_INDEX)
    for entry in (b"\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff"):
        size = bench.disk.size(path)
        bench.sim.overwrite(path, entry, size // 2 - size // 2 % 8 + 4)
        assert [h.base_offset for h in bench.headers()] == list(range(100))
        for offset in range(100):
            part = bench.log.read(Offset(offset), 1, Offset(100), whole_batch=True)
            assert part is not None
            assert part.position == offset * len(batch_of())
        bench.reopen()


def test_a_damaged_header_in_an_old_segment_is_reported_and_not_skipped() -> None:
    """Records after it must not silently disappear from between two others."""
    bench = Bench(config=dataclasses.replace(SMALL, index_interval_bytes=1 << 20))
    bench.append_many(40)
    bench.close()
    bench.sim.overwrite(bench.path(0), b"\x7f", 3 * len(batch_of()) + 8)
    bench.open()
    with pytest.raises(KafkaStorageError):
        batches_in(bench.log)


# -- leftovers ------------------------------------------------------------------------------------


def test_temporary_files_of_a_crashed_process_are_removed(bench: Bench) -> None:
    _filled(bench)
    bench.close()
    before = bench.names()
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000099.log.cleaned",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000777.index",
        "00000000000000000777.timeindex",
        "00000000000000000777.txnindex",
    ):
        bench.disk.open(f"{bench.dir}/{name}", create=True).close()
    bench.open()
    assert bench.names() == before


def test_unknown_files_are_not_touched(bench: Bench) -> None:
    bench.append()
    bench.close()
    for name in ("README", "1.log", "x.log", "0000000000000000000a.log"):
        bench.disk.open(f"{bench.dir}/{name}", create=True).close()
    bench.open()
    assert len(bench.headers()) == 1
    assert {"README", "1.log", "x.log"} <= set(bench.names())


def test_an_empty_segment_in_the_middle_hides_no_records(bench: Bench) -> None:
    """Earlier a failed roll left one behind, and records above it became unreadable."""
    bench.append_many(10)
    bench.close()
    bench.disk.open(bench.path(5), create=True).close()
    bench.open()
    bench.log.roll(NOW_MS)
    bench.append_many(2)
    bench.close()
    bench.disk.open(bench.path(5), create=True).close()
    for clean in (True, False):
        bench.open(clean=clean)
        assert [h.base_offset for h in bench.headers()] == list(range(12))


def test_an_old_transaction_index_is_not_used_for_a_new_segment_with_its_name() -> None:
    bench = Bench()
    bench.append(batch_of(producer=(7, 0, 0)))
    bench.disk.write_atomically(bench.path(1, names.TXN_INDEX), b"\0" * 34)
    bench.log.roll(NOW_MS)
    bench.append(batch_of(producer=(7, 0, 1)))
    assert bench.log.aborted_between(Offset(0), Offset(9)) == []


def test_snapshots_of_many_restarts_do_not_accumulate(bench: Bench) -> None:
    _filled(bench)
    for i in range(5):
        bench.append(batch_of(producer=(7, 0, 60 + i)))
        bench.reopen()
    bases = {segment.base_offset for segment in bench.log.segments()}
    kept = {
        offset
        for name in bench.names()
        if (offset := names.parse_offset_name(name, names.SNAPSHOT)) is not None
    }
    assert len(kept - bases) <= 1
    assert max(kept) == bench.log.end_offset


def test_the_log_start_offset_is_kept_after_a_restart(bench: Bench) -> None:
    _filled(bench)
    bench.log.advance_start(Offset(33))
    bench.reopen()
    assert bench.log.start_offset == 33
    assert bench.headers()[0].base_offset == 33


def test_a_start_offset_beyond_the_end_is_lowered_to_the_end(bench: Bench) -> None:
    bench.append_many(5)
    bench.close()
    assert bench.open(start_offset=99).start_offset == 5


def test_a_log_that_lost_everything_starts_at_its_start_offset(bench: Bench) -> None:
    assert bench.open(start_offset=50).end_offset == 50
    assert bench.append().base_offset == 50


def test_a_batch_with_an_epoch_newer_than_the_clusters_is_removed(bench: Bench) -> None:
    bench.append_many(5)
    bench.epoch = 1 << 20
    bench.append_many(2)
    bench.files.forget_dir(bench.dir)
    bench.disk.remove(f"{bench.dir}/{names.LEADER_EPOCHS}")
    bench.open(clean=False, leader_epoch_max=3)
    assert bench.log.end_offset == 5
    assert bench.log.epochs.entries() == [(0, 0)]


def test_the_simulated_and_the_local_disk_have_the_same_files(tmp_path: object) -> None:
    """The simulated disk and the local disk have the same files, byte for byte."""
    simulated, local = _filled(), _filled(Bench(disk=LocalDisk(), dir=f"{tmp_path}/orders-0"))
    simulated.close()
    local.close()
    assert simulated.names() == local.names()
    for name in simulated.names():
        assert simulated.disk.read_bytes(f"{simulated.dir}/{name}") == local.disk.read_bytes(
            f"{local.dir}/{name}"
        )


def test_a_start_offset_that_a_crash_lowered_gets_its_epochs_back() -> None:
    """The start offset advanced and earlier epochs were removed, but the start was not written."""
    bench = _filled()
    epochs = bench.log.epochs.entries()
    bench.sync()
    bench.log.advance_start(Offset(60))
    assert bench.log.epochs.entries() != epochs
    recovery_point = bench.log.recovery_point
    bench.disk = bench.sim.crash()
    bench.open(clean=False, recovery_point=recovery_point, start_offset=0)
    assert bench.log.start_offset == 0
    assert bench.log.epochs.entries() == epochs


def test_a_producer_whose_segment_was_removed_between_two_crashes_is_known() -> None:
    """The state that recovery found was nowhere on disk: the retry was appended again."""
    bench = Bench(config=TopicConfig(segment_bytes=1024))
    sent = bytes(batch_of(4, value=b"x" * 211, producer=(7, 0, 0)))
    assert bench.append(bytearray(sent)).base_offset == 0
    bench.append(batch_of(3, value=b"x" * 211))
    assert len(bench.log.segments()) == 2
    bench.crash()
    for path in bench.log.remove_oldest(1):
        bench.disk.remove(path)
    bench.crash()
    assert bench.append(bytearray(sent)).is_duplicate


@pytest.mark.parametrize("clean", [True, False])
def test_the_producer_state_is_that_of_all_batches_on_disk_also_below_the_log_start(
    clean: bool,
) -> None:
    """A truncation forgot what a later restart found again."""
    bench = Bench()
    sent = bytes(batch_of(1, producer=(7, 0, 0)))
    bench.append(bytearray(sent))
    bench.append()
    bench.log.advance_start(Offset(1))
    bench.truncate_to(Offset(1))
    assert bench.append(bytearray(sent)).is_duplicate
    for path in bench.disk.list_dir(bench.dir):
        if path.endswith(".snapshot"):
            bench.disk.remove(f"{bench.dir}/{path}")
    if clean:
        bench.files.forget_dir(bench.dir)
        bench.open(start_offset=1)
    else:
        bench.crash()
    assert bench.append(bytearray(sent)).is_duplicate


def test_the_indexes_of_a_segment_with_many_batches_are_rebuilt_in_parts() -> None:
    bench = Bench()
    bench.append_many(1_200)
    (segment,) = bench.log.segments()
    before = len(segment.offset_index)
    assert len(list(segment.rebuilding_indexes())) == 2
    assert len(segment.offset_index) == before
    bench.reopen()
    assert len(bench.headers()) == 1_200
