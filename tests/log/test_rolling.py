"""When a segment ends and the next one starts."""

import dataclasses
import struct

from suwi.log import names
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from tests.log.kit import NOW_MS, Bench, batch_of

HOUR_MS = 3_600_000


def _configure(bench: Bench, **settings: int) -> None:
    bench.config = dataclasses.replace(TopicConfig(), **settings)  # type: ignore[arg-type]


def _bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.segments()]


def test_a_new_log_is_one_empty_segment_named_by_twenty_digits(bench: Bench) -> None:
    assert bench.log.end_offset == bench.log.start_offset == 0
    assert {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
    } == set(bench.names())


def test_a_segment_never_grows_past_segment_bytes(bench: Bench) -> None:
    size = len(batch_of())
    _configure(bench, segment_bytes=3 * size)
    bench.append_many(7)
    assert _bases(bench) == [0, 3, 6]
    assert [s.size_bytes for s in bench.log.segments()] == [3 * size, 3 * size, size]
    assert len(bench.headers()) == 7


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(bench: Bench) -> None:
    _configure(bench, segment_bytes=1024)
    bench.append()
    bench.append(batch_of(value=b"x" * 5000))
    bench.append()
    assert _bases(bench) == [0, 1, 2]


def test_a_segment_is_rolled_by_the_time_of_its_records_not_of_the_clock(bench: Bench) -> None:
    _configure(bench, segment_ms=HOUR_MS)
    bench.append(batch_of(timestamps=[NOW_MS]))
    bench.append(batch_of(timestamps=[NOW_MS + HOUR_MS]), now_ms=NOW_MS + 9 * HOUR_MS)
    assert _bases(bench) == [0]
    bench.append(batch_of(timestamps=[NOW_MS + HOUR_MS + 1]))
    assert _bases(bench) == [0, 2]


def test_the_first_batchs_newest_record_counts(bench: Bench) -> None:
    _configure(bench, segment_ms=HOUR_MS)
    bench.append(batch_of(2, timestamps=[NOW_MS, NOW_MS + 100]))
    bench.append(batch_of(timestamps=[NOW_MS + HOUR_MS + 100]))
    assert _bases(bench) == [0]


def test_records_without_timestamps_are_rolled_by_the_clock(bench: Bench) -> None:
    _configure(bench, segment_ms=HOUR_MS)
    bench.append(batch_of(timestamps=[-1]))
    bench.append(batch_of(timestamps=[-1]), now_ms=NOW_MS + HOUR_MS)
    assert _bases(bench) == [0]
    bench.append(batch_of(timestamps=[-1]), now_ms=NOW_MS + HOUR_MS + 1)
    assert _bases(bench) == [0, 2]


def test_jitter_shortens_the_roll_time(bench: Bench) -> None:
    _configure(bench, segment_ms=HOUR_MS)
    bench.log.roll_jitter_ms = 1_000
    bench.append(batch_of(timestamps=[NOW_MS]))
    bench.append(batch_of(timestamps=[NOW_MS + HOUR_MS - 999]))
    assert _bases(bench) == [0, 1]


def test_the_time_of_the_first_record_is_known_after_a_restart(bench: Bench) -> None:
    _configure(bench, segment_ms=HOUR_MS)
    bench.append(batch_of(timestamps=[NOW_MS]))
    bench.reopen()
    bench.append(batch_of(timestamps=[NOW_MS + HOUR_MS + 1]))
    assert _bases(bench) == [0, 1]


def test_a_segment_is_rolled_before_an_index_grows_past_its_limit(bench: Bench) -> None:
    _configure(bench, segment_index_bytes=48, index_interval_bytes=0)
    for i in range(40):
        bench.append(batch_of(timestamps=[NOW_MS + i]))
    bench.log.finish()
    assert len(_bases(bench)) > 5
    for base in _bases(bench):
        assert bench.disk.size(bench.path(base, names.OFFSET_INDEX)) <= 48
        assert bench.disk.size(bench.path(base, names.TIME_INDEX)) <= 48
    assert len(bench.headers()) == 40


def test_a_segment_is_rolled_if_an_offset_would_not_fit_into_an_index_entry(
    bench: Bench,
) -> None:
    for base in (0, 2**31 - 1, 2**31, 2**33):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    assert _bases(bench) == [0, 2**31, 2**33]
    assert [h.base_offset for h in bench.headers()] == [0, 2**31 - 1, 2**31, 2**33]
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == [0, 2**31 - 1, 2**31, 2**33]
    assert bench.log.end_offset == 2**33 + 1


def test_an_empty_log_can_start_far_beyond_its_first_segment(bench: Bench) -> None:
    batch = batch_of(base_offset=2**40, epoch=0)
    bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    assert [h.base_offset for h in bench.headers()] == [2**40]
    bench.reopen()
    assert [h.base_offset for h in bench.headers()] == [2**40]


def test_rolling_an_empty_segment_does_nothing(bench: Bench) -> None:
    bench.log.roll(NOW_MS)
    assert _bases(bench) == [0]


def test_an_index_entry_is_made_for_every_interval_of_log(bench: Bench) -> None:
    size = len(batch_of())
    _configure(bench, index_interval_bytes=2 * size)
    bench.append_many(10)
    bench.log.roll(NOW_MS)
    entries = bench.disk.read_bytes(bench.path(0, names.OFFSET_INDEX))
    assert list(struct.iter_unpack(">ii", entries)) == [
        (3, 3 * size),
        (6, 6 * size),
        (9, 9 * size),
    ]


def test_a_finished_segments_time_index_ends_with_its_newest_record(bench: Bench) -> None:
    for i, timestamp in enumerate([50, 90, 70]):
        assert bench.append(batch_of(timestamps=[timestamp])).base_offset == i
    bench.log.roll(NOW_MS)
    entries = bench.disk.read_bytes(bench.path(0, names.TIME_INDEX))
    assert list(struct.iter_unpack(">qi", entries)) == [(90, 1)]


def test_a_roll_writes_a_producer_snapshot_at_the_new_segments_start(bench: Bench) -> None:
    bench.append(batch_of(3, producer=(7, 0, 0)))
    bench.log.roll(NOW_MS)
    assert names.offset_name(Offset(3)) + names.SNAPSHOT in bench.names()


def test_very_many_segments_are_synced_in_parts() -> None:
    """Their files are opened on the event loop: thousands at once would stop everything."""
    config = dataclasses.replace(TopicConfig(), segment_bytes=len(batch_of()))
    bench = Bench(config=config, open_files_max=10_000)
    bench.append_many(130)
    ends = []
    while (job := bench.log.durability.sync_job(Offset(125))) is not None:
        job.run()
        bench.log.durability.synced(job)
        ends.append(job.end_offset)
        assert len(job.files) <= 3 * 50
    assert ends == [50, 99, 125]
    assert bench.log.recovery_point == 125
    bench.sync()
    assert bench.log.recovery_point == 130


def test_a_sync_has_as_many_files_as_the_limit_of_open_files_allows() -> None:
    """After a kill every log has segments to sync: together they took all descriptors, whatever
    the limit was, and no connection could be accepted."""
    config = dataclasses.replace(TopicConfig(), segment_bytes=len(batch_of()))
    bench = Bench(config=config, open_files_max=128)
    bench.append_many(40)
    jobs = 0
    while (job := bench.log.durability.sync_job()) is not None:
        assert len(job.files) <= 8
        job.run()
        bench.log.durability.synced(job)
        jobs += 1
    assert jobs > 20
    assert bench.lose_power().end_offset == 40


def test_a_recovered_log_is_synced_in_parts_and_safe_after_the_last() -> None:
    config = dataclasses.replace(TopicConfig(), segment_bytes=len(batch_of()))
    bench = Bench(config=config, open_files_max=10_000)
    bench.append_many(130)
    bench.crash()
    jobs = 0
    while (job := bench.log.durability.sync_job()) is not None:
        assert len(job.files) <= 3 * 50
        assert not bench.log.durability.truncation_is_safe
        job.run()
        bench.log.durability.synced(job)
        jobs += 1
    assert jobs == 3
    assert bench.log.durability.truncation_is_safe
    assert bench.lose_power().end_offset == 130
