"""Which segments retention deletes, and the remaining log."""

import dataclasses
from itertools import pairwise

import pytest

from suwi.log import names
from suwi.log.log_segments import SEGMENTS_AT_ONCE
from suwi.log.retention import SegmentFacts, applying_retention, count_deletable
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from tests.log.kit import NOW_MS, Bench, apply_retention, batch_of

DAY_MS = 86_400_000


def _facts(*segments: tuple[int, int, int]) -> list[SegmentFacts]:
    """End offset, size and age in days of each."""
    return [
        SegmentFacts(Offset(end), size, lambda age=age: NOW_MS - age * DAY_MS)
        for end, size, age in segments
    ]


def _count(
    segments: list[SegmentFacts],
    *,
    policy: tuple[str, ...] = ("delete",),
    retention_ms: int = -1,
    retention_bytes: int = -1,
    start_offset: int = 0,
    high_watermark: int = 1_000,
) -> int:
    config = TopicConfig(
        cleanup_policy=policy, retention_ms=retention_ms, retention_bytes=retention_bytes
    )
    return count_deletable(
        segments,
        config,
        now_ms=NOW_MS,
        start_offset=Offset(start_offset),
        high_watermark=Offset(high_watermark),
    )


FOUR = _facts((10, 100, 9), (20, 100, 7), (30, 100, 3), (40, 100, 0))


@pytest.mark.parametrize(
    ("days", "expected"), [(-1, 0), (0, 3), (1, 3), (3, 2), (5, 2), (7, 1), (8, 1), (9, 0)]
)
def test_segments_whose_newest_record_is_older_than_retention_ms_are_deleted(
    days: int, expected: int
) -> None:
    assert _count(FOUR, retention_ms=days * DAY_MS if days >= 0 else -1) == expected


def test_a_recent_segment_protects_the_segments_after_it() -> None:
    segments = _facts((10, 100, 1), (20, 100, 9), (30, 100, 0))
    assert _count(segments, retention_ms=5 * DAY_MS) == 0


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (-1, 0),
        (0, 4),
        (99, 3),
        (100, 3),
        (101, 2),
        (250, 1),
        (300, 1),
        (301, 0),
        (400, 0),
        (900, 0),
    ],
)
def test_segments_are_deleted_while_the_log_keeps_at_least_retention_bytes(
    bytes_max: int, expected: int
) -> None:
    assert _count(FOUR, retention_bytes=bytes_max) == expected


@pytest.mark.parametrize(
    ("start_offset", "expected"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (40, 3)]
)
def test_segments_below_the_start_offset_are_deleted_but_never_the_active_one(
    start_offset: int, expected: int
) -> None:
    assert _count(FOUR, start_offset=start_offset) == expected


@pytest.mark.parametrize(
    ("high_watermark", "expected"), [(0, 0), (9, 0), (10, 1), (35, 3), (39, 3), (40, 4)]
)
def test_nothing_at_or_above_the_high_watermark_is_deleted(
    high_watermark: int, expected: int
) -> None:
    assert _count(FOUR, retention_bytes=0, high_watermark=high_watermark) == expected


def test_the_strictest_rule_wins() -> None:
    assert _count(FOUR, retention_ms=8 * DAY_MS, retention_bytes=250, start_offset=0) == 1
    assert _count(FOUR, retention_ms=5 * DAY_MS, retention_bytes=250, start_offset=0) == 2
    assert _count(FOUR, retention_ms=8 * DAY_MS, retention_bytes=-1, start_offset=30) == 3


def test_a_log_that_is_only_compacted_loses_only_segments_below_its_start_offset() -> None:
    assert _count(FOUR, policy=("compact",), retention_ms=0, retention_bytes=0) == 0
    assert _count(FOUR, policy=("compact",), retention_ms=0, start_offset=20) == 2
    assert _count(FOUR, policy=("compact", "delete"), retention_bytes=0) == 4


def test_an_empty_active_segment_stays() -> None:
    segments = _facts((10, 100, 9), (10, 0, 9))
    assert _count(segments, retention_ms=0, high_watermark=10) == 1
    assert _count(_facts((10, 0, 9)), retention_ms=0, high_watermark=10) == 0


# -- on a log -------------------------------------------------------------------------------------


def _log_with(bench: Bench, *days_old: int, **settings: int) -> Bench:
    """A segment for each age; the last one is active."""
    bench.config = dataclasses.replace(TopicConfig(retention_ms=-1), **settings)  # type: ignore[arg-type]
    for number, days in enumerate(days_old):
        if number:
            bench.log.roll(NOW_MS)
        for _ in range(5):
            bench.append(batch_of(timestamps=[NOW_MS - days * DAY_MS]))
    return bench


def _retain(bench: Bench, high_watermark: int | None = None, now_ms: int = NOW_MS) -> list[str]:
    limit = bench.log.end_offset if high_watermark is None else Offset(high_watermark)
    return apply_retention(bench.log, limit, now_ms)


def test_old_segments_are_removed_from_the_log_and_their_files_are_renamed(bench: Bench) -> None:
    _log_with(bench, 9, 8, 1, retention_ms=3 * DAY_MS)
    deleted = _retain(bench)
    assert bench.log.start_offset == 10
    assert [h.base_offset for h in bench.headers()] == list(range(10, 15))
    assert len([path for path in deleted if path.endswith(".log.deleted")]) == 2
    assert all(bench.disk.exists(path) for path in deleted)
    assert _retain(bench) == []


def test_if_all_segments_are_old_a_new_active_segment_is_created_first(bench: Bench) -> None:
    _log_with(bench, 9, 8, retention_ms=3 * DAY_MS)
    assert _retain(bench) != []
    assert (bench.log.start_offset, bench.log.end_offset) == (10, 10)
    assert [segment.base_offset for segment in bench.log.segments()] == [10]
    assert bench.headers() == []
    bench.reopen()
    assert bench.append().base_offset == 10


def test_uncommitted_records_are_not_deleted(bench: Bench) -> None:
    _log_with(bench, 9, 8, 7, retention_ms=3 * DAY_MS)
    _retain(bench, high_watermark=9)
    assert bench.log.start_offset == 5
    _retain(bench, high_watermark=14)
    assert bench.log.start_offset == 10
    assert bench.log.end_offset == 15


def test_an_empty_log_is_not_changed(bench: Bench) -> None:
    _log_with(bench, retention_ms=0, retention_bytes=0)
    assert _retain(bench) == []
    assert bench.names()


def test_size_counts_the_whole_log(bench: Bench) -> None:
    size = 5 * len(batch_of())
    _log_with(bench, 0, 0, 0, 0, retention_bytes=2 * size)
    _retain(bench)
    assert bench.log.size_bytes == 2 * size
    assert bench.log.start_offset == 10


def test_records_without_timestamps_use_the_age_of_their_file() -> None:
    bench = Bench(config=TopicConfig(retention_ms=DAY_MS))
    bench.append(batch_of(timestamps=[-1]))
    bench.log.roll(NOW_MS)
    bench.append(batch_of(timestamps=[-1]))
    written_ms = bench.disk.modified_ms(bench.path(0))
    assert _retain(bench, now_ms=written_ms + DAY_MS) == []
    assert _retain(bench, now_ms=written_ms + DAY_MS + 1) != []


def test_the_age_of_a_segment_is_known_after_a_restart(bench: Bench) -> None:
    _log_with(bench, 9, 2, 1, retention_ms=3 * DAY_MS)
    bench.reopen()
    _retain(bench)
    assert bench.log.start_offset == 5
    bench.recover()
    assert bench.log.start_offset == 5


def test_the_ages_of_many_segments_are_read_in_slices_after_a_restart(bench: Bench) -> None:
    _log_with(bench, *[9] * 40, *[1] * 40, retention_ms=3 * DAY_MS)
    bench.reopen()
    known = [
        sum(segment.knows_max_timestamp for segment in bench.log.segments())
        for _ in applying_retention(bench.log, bench.log.end_offset, NOW_MS, [])
    ]
    assert max(after - before for before, after in pairwise([1, *known])) <= SEGMENTS_AT_ONCE
    assert max(known) <= 42  # also the first that stays, and the active one, which was known
    assert bench.log.start_offset == 200


def test_segments_below_the_start_offset_are_deleted_with_any_policy(bench: Bench) -> None:
    _log_with(bench, 0, 0, 0, 0)
    bench.config = dataclasses.replace(bench.config, cleanup_policy=("compact",))
    bench.log.config = bench.config
    bench.log.advance_start(Offset(12))
    _retain(bench)
    assert bench.log.segments()[0].base_offset == 10
    assert bench.log.start_offset == 12


def test_epochs_and_producer_state_outlive_the_deleted_records(bench: Bench) -> None:
    """KIP-360, hazard 17: the producer's next batch must not be refused."""
    bench.config = TopicConfig(retention_bytes=0)
    bench.epoch = 4
    bench.append(batch_of(3, producer=(7, 0, 0)))
    _retain(bench)
    assert bench.log.epochs.entries() == [(4, 0)]
    assert bench.append(batch_of(3, producer=(7, 0, 0))).is_duplicate
    bench.reopen()
    assert bench.append(batch_of(producer=(7, 0, 3))).base_offset == 3
    assert names.offset_name(Offset(0)) + names.LOG not in bench.names()
