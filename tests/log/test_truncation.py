"""Removing records from the end, and the start, of a log."""

import dataclasses
import errno
from contextlib import suppress

import pytest

from suwi.log import names
from suwi.log.sliced_work import run_steps
from suwi.model.errors import KafkaStorageError, OutOfOrderSequence
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.record import MarkerType
from suwi.sim import Revoked
from tests.log.kit import NOW_MS, Bench, batch_of, values_in


def _small_segments(bench: Bench) -> Bench:
    bench.config = dataclasses.replace(TopicConfig(), segment_bytes=1024, index_interval_bytes=100)
    return bench


def test_producers_that_cannot_be_loaded_for_want_of_descriptors_are_loaded_later() -> None:
    bench = _small_segments(Bench())
    bench.append_many(40)
    bench.sim.faults.fail("list_dir", errno.EMFILE)
    with pytest.raises(KafkaStorageError):
        bench.truncate_to(Offset(20))
    assert bench.log.end_offset == 20
    assert bench.log.state.offline_because is None
    assert not bench.log.producers_are_known
    run_steps(bench.log.reloading_producers())
    assert bench.append().base_offset == 20


@pytest.mark.parametrize("ending", [names.OFFSET_INDEX, names.TIME_INDEX])
def test_a_truncation_begins_when_it_has_the_descriptors_that_it_needs(ending: str) -> None:
    """Earlier the log was shorter than its index then, and the directory went offline."""
    bench = _small_segments(Bench())
    bench.append_many(40)
    bench.reopen()
    bench.log.files.forget_dir(bench.dir)  # The cache is limited, and other logs are in use.
    before = values_in(bench.log)
    bench.log.files.forget_dir(bench.dir)
    bench.sim.faults.fail("open", errno.EMFILE, path=f"*{ending}")
    with pytest.raises(KafkaStorageError):
        bench.truncate_to(Offset(37))
    assert bench.log.state.offline_because is None
    assert values_in(bench.log) == before
    bench.truncate_to(Offset(37))
    assert values_in(bench.log) == before[:37]


@pytest.mark.parametrize("offset", [0, 1, 13, 14, 15, 27, 28, 39, 40, 99])
def test_exactly_the_records_below_the_offset_stay(bench: Bench, offset: int) -> None:
    _small_segments(bench).append_many(40)
    before = values_in(bench.log)
    bench.truncate_to(Offset(offset))
    kept = min(offset, 40)
    assert bench.log.end_offset == kept
    assert values_in(bench.log) == before[:kept]
    bench.append_many(3)
    assert [h.base_offset for h in bench.headers()] == list(range(kept + 3))
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == list(range(kept + 3))


def test_a_batch_that_contains_the_offset_is_removed_completely(bench: Bench) -> None:
    for _ in range(3):
        bench.append(batch_of(10))
    bench.truncate_to(Offset(15))
    assert bench.log.end_offset == 10
    assert [h.base_offset for h in bench.headers()] == [0]


def test_segments_above_the_offset_are_removed_with_all_their_files(bench: Bench) -> None:
    _small_segments(bench).append_many(40)
    bench.truncate_to(Offset(5))
    assert [n for n in bench.names() if n.startswith("0")] == [
        f"00000000000000000000{suffix}" for suffix in (".index", ".log", ".timeindex")
    ]


def test_a_truncation_below_the_first_segment_restarts_the_log_at_the_offset(bench: Bench) -> None:
    _small_segments(bench).append_many(40)
    bench.log.remove_oldest(2)
    assert bench.log.start_offset == 28
    bench.truncate_to(Offset(10))
    assert (bench.log.start_offset, bench.log.end_offset) == (10, 10)
    assert bench.log.epochs.entries() == [(0, 0)]  # that of the record before
    assert bench.append().base_offset == 10
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == [10]


def test_epochs_above_the_offset_are_removed(bench: Bench) -> None:
    for epoch in (1, 2, 3):
        bench.epoch = epoch
        bench.append_many(5)
    bench.truncate_to(Offset(12))
    assert bench.log.epochs.entries() == [(1, 0), (2, 5), (3, 10)]
    bench.truncate_to(Offset(10))
    assert bench.log.epochs.entries() == [(1, 0), (2, 5)]
    path = f"{bench.dir}/{names.LEADER_EPOCHS}"
    assert bench.disk.read_bytes(path) == b"0\n2\n1 0\n2 5\n"


def test_the_producer_state_is_that_at_the_offset(bench: Bench) -> None:
    _small_segments(bench)
    for sequence in range(40):
        bench.append(batch_of(producer=(7, 0, sequence)))
    bench.truncate_to(Offset(20))
    assert bench.append(batch_of(producer=(7, 0, 19))).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        bench.append(batch_of(producer=(7, 0, 21)))
    assert bench.append(batch_of(producer=(7, 0, 20))).base_offset == 20


def test_a_transaction_whose_marker_was_truncated_is_open_again(bench: Bench) -> None:
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    bench.append_marker(7, 0, MarkerType.ABORT)
    assert len(bench.log.aborted_between(Offset(0), Offset(9))) == 1
    bench.truncate_to(Offset(1))
    assert bench.log.producers.first_open_txn_offset == 0
    assert bench.log.aborted_between(Offset(0), Offset(9)) == []


def test_the_newest_timestamp_is_that_of_the_remaining_records(bench: Bench) -> None:
    bench.config = dataclasses.replace(TopicConfig(), index_interval_bytes=100)
    for i in range(30):
        bench.append(batch_of(timestamps=[1000 + i if i < 20 else 500]))
    assert bench.log.active.max_timestamp == 1019
    bench.truncate_to(Offset(25))
    assert bench.log.active.max_timestamp == 1019
    bench.truncate_to(Offset(10))
    assert bench.log.active.max_timestamp == 1009
    bench.truncate_to(Offset(0))
    assert bench.log.active.max_timestamp == -1


def test_the_recovery_point_is_never_beyond_the_end(bench: Bench) -> None:
    bench.append_many(10)
    bench.sync()
    assert bench.log.recovery_point == 10
    bench.truncate_to(Offset(4))
    assert bench.log.recovery_point == 4


def test_a_sync_in_progress_during_a_truncation_does_not_advance_the_recovery_point(
    bench: Bench,
) -> None:
    bench.append_many(10)
    job = bench.log.durability.sync_job()
    assert job is not None
    job.run()
    bench.truncate_to(Offset(4))
    bench.append_many(10)
    bench.log.durability.synced(job)
    assert bench.log.recovery_point == 0


def test_a_follower_can_append_an_older_epoch_after_it_truncated_a_newer_one() -> None:
    """Earlier the checkpoint still had the truncated epoch, and every older batch was refused."""
    bench = Bench()
    for base, epoch in ((0, 6), (1, 7)):
        batch = batch_of(base_offset=base, epoch=epoch)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(7), NOW_MS)
    bench.sync()
    bench.sim.faults.fail("write", 28, path="*leader-epoch*", times=None)
    bench.truncate_to(Offset(1))
    bench.sim.faults.clear()
    bench.crash()
    batch = batch_of(base_offset=1, epoch=6)
    bench.log.append_as_follower(memoryview(batch), LeaderEpoch(8), NOW_MS)
    assert bench.log.end_offset == 2


# -- the start ----------------------------------------------------------------------------------


def test_the_start_offset_moves_within_a_segment_without_changing_it(bench: Bench) -> None:
    bench.epoch = 3
    bench.append_many(10)
    bench.log.advance_start(Offset(6))
    bench.log.advance_start(Offset(2))
    assert bench.log.start_offset == 6
    assert bench.log.epochs.entries() == [(3, 0)]
    assert [h.base_offset for h in bench.headers()] == [6, 7, 8, 9]


def test_the_oldest_segments_are_removed_with_all_their_files(bench: Bench) -> None:
    _small_segments(bench)
    for sequence in range(40):
        bench.append(batch_of(producer=(7, 0, sequence)))
    renamed = bench.log.remove_oldest(2)
    assert bench.log.start_offset == bench.log.segments()[0].base_offset
    assert all(path.endswith(".deleted") for path in renamed)
    assert {path.rsplit(".", 2)[1] for path in renamed} == {
        "log",
        "index",
        "timeindex",
        "snapshot",
    }
    assert bench.headers()[0].base_offset == bench.log.start_offset
    bench.reopen()
    assert not [name for name in bench.names() if name.endswith(".deleted")]
    assert bench.headers()[0].base_offset == bench.log.start_offset


def test_a_truncation_that_crashes_at_any_step_leaves_no_hole() -> None:
    for calls in range(60):
        bench = Bench(config=TopicConfig(segment_bytes=1024))
        bench.append_many(60)
        before = values_in(bench.log)
        bench.sim.faults.crash_after(calls)
        with suppress(Revoked):
            bench.truncate_to(Offset(20))
        bench.sim.faults.clear()
        bench.crash()
        after = values_in(bench.log)
        assert len(after) >= 20
        assert after == before[: len(after)]
