"""Lookup of records by offset and by timestamp, within limits."""

import dataclasses
from itertools import pairwise

import pytest

from suwi.log.log_segments import SEGMENTS_AT_ONCE, LogSlice
from suwi.log.txn_index import AbortedTxn, TxnIndex
from suwi.model.errors import CorruptMessage, FencedLeaderEpoch, InvalidRecord, OffsetOutOfRange
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import batches
from suwi.records.record import MarkerType
from tests.log.kit import NOW_MS, Bench, batch_of, bytes_of


def _bases(part: LogSlice | None) -> list[int]:
    return [] if part is None else [header.base_offset for _, header in batches(part.read())]


def _read(
    bench: Bench, offset: int, bytes_max: int = 1 << 20, limit: int | None = None
) -> list[int]:
    end = bench.log.end_offset if limit is None else Offset(limit)
    return _bases(bench.log.read(Offset(offset), bytes_max, end, whole_batch=True))


def _small_segments(bench: Bench) -> Bench:
    bench.config = dataclasses.replace(TopicConfig(), segment_bytes=1024, index_interval_bytes=100)
    return bench


def _follow(bench: Bench, *base_offsets: int, count: int = 1) -> None:
    for base in base_offsets:
        batch = batch_of(count, base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)


def test_every_offset_is_found(bench: Bench) -> None:
    _small_segments(bench).append_many(60)
    assert len(bench.log.segments()) > 3
    for offset in range(60):
        assert _read(bench, offset)[0] == offset
    bench.reopen()
    for offset in range(60):
        assert _read(bench, offset)[0] == offset


def test_reading_an_offset_inside_a_batch_returns_the_whole_batch(bench: Bench) -> None:
    for _ in range(5):
        bench.append(batch_of(10))
    assert [_read(bench, offset)[0] for offset in (0, 9, 10, 15, 49)] == [0, 0, 10, 10, 40]
    bench.reopen()
    assert [_read(bench, offset)[0] for offset in (0, 9, 10, 15, 49)] == [0, 0, 10, 10, 40]


def test_reading_an_offset_in_a_gap_returns_the_next_batch(bench: Bench) -> None:
    """Compaction leaves gaps."""
    _follow(_small_segments(bench), *range(0, 500, 10), count=2)
    for offset in range(490):
        expected = offset - offset % 10 if offset % 10 < 2 else offset - offset % 10 + 10
        assert _read(bench, offset)[0] == expected


def test_a_gap_between_two_segments_is_crossed(bench: Bench) -> None:
    _follow(bench, 0, 1)
    bench.log.roll(NOW_MS)
    _follow(bench, 50)
    bench.log.roll(NOW_MS)
    _follow(bench, 99)
    assert [_read(bench, offset)[0] for offset in (1, 2, 49, 50, 51)] == [1, 50, 50, 50, 99]


def test_reading_at_the_end_returns_nothing_and_beyond_it_an_error(bench: Bench) -> None:
    bench.append_many(3)
    assert bench.log.read(Offset(3), 1000, Offset(3), whole_batch=True) is None
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(Offset(4), 1000, Offset(3), whole_batch=True)
    bench.log.advance_start(Offset(2))
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(Offset(1), 1000, Offset(3), whole_batch=True)


def test_nothing_at_or_above_the_limit_is_read(bench: Bench) -> None:
    _small_segments(bench).append_many(60)
    for limit in range(61):
        found: list[int] = []
        offset = 0
        while part := _read(bench, offset, limit=limit) if offset < limit else []:
            found += part
            offset = part[-1] + 1
        assert found == list(range(limit))


def test_a_limit_inside_a_batch_excludes_that_batch(bench: Bench) -> None:
    bench.append(batch_of(10))
    bench.append(batch_of(10))
    assert _read(bench, 0, limit=15) == [0]
    assert _read(bench, 0, limit=19) == [0]
    assert _read(bench, 0, limit=20) == [0, 10]
    assert _read(bench, 12, limit=15) == []


def test_a_limit_in_a_gap_excludes_the_batches_after_it(bench: Bench) -> None:
    _follow(bench, 0, 50)
    assert _read(bench, 0, limit=20) == [0]
    assert _read(bench, 10, limit=20) == []
    bench.log.roll(NOW_MS)
    _follow(bench, 90)
    assert _read(bench, 60, limit=70) == []


def test_with_whole_batch_the_first_batch_is_complete_however_few_bytes_are_requested(
    bench: Bench,
) -> None:
    bench.append_many(3)
    size = len(batch_of())
    for bytes_max in (0, 1, size - 1, size):
        part = bench.log.read(Offset(1), bytes_max, Offset(3), whole_batch=True)
        assert part is not None
        assert part.size_bytes == size


def test_without_whole_batch_a_batch_larger_than_the_limit_is_not_returned(bench: Bench) -> None:
    bench.append_many(3)
    size = len(batch_of())
    assert bench.log.read(Offset(0), size - 1, Offset(3), whole_batch=False) is None
    part = bench.log.read(Offset(0), size, Offset(3), whole_batch=False)
    assert part is not None
    assert part.size_bytes == size


def test_the_last_batch_may_be_incomplete(bench: Bench) -> None:
    bench.append_many(3)
    size = len(batch_of())
    part = bench.log.read(Offset(0), size + 20, Offset(3), whole_batch=True)
    assert part is not None
    assert part.size_bytes == len(part.read()) == size + 20
    assert _bases(part) == [0]


def test_a_read_ends_with_its_segment(bench: Bench) -> None:
    bench.append_many(2)
    bench.log.roll(NOW_MS)
    bench.append_many(2)
    assert _read(bench, 0) == [0, 1]
    assert _read(bench, 2) == [2, 3]


# -- sending ------------------------------------------------------------------------------------


def test_a_pinned_range_stays_readable_after_retention_removed_its_segment(bench: Bench) -> None:
    bench.append(batch_of(value=b"old"))
    bench.log.roll(NOW_MS)
    bench.append()
    part = bench.log.read(Offset(0), 1000, Offset(2), whole_batch=True)
    assert part is not None
    before = part.read()
    region, release = part.pin()
    for path in bench.log.remove_oldest(1):
        bench.disk.remove(path)
    assert region.is_current()
    assert bytes_of(region) == before
    release()


def test_a_pinned_range_is_not_current_after_a_truncation(bench: Bench) -> None:
    bench.append_many(3)
    part = bench.log.read(Offset(0), 1000, Offset(3), whole_batch=True)
    assert part is not None
    region, release = part.pin()
    bench.truncate_to(Offset(2))
    assert not region.is_current()
    release()


# -- by timestamp -------------------------------------------------------------------------------


def _at_time(bench: Bench, timestamp: int) -> int | None:
    found = _bases(bench.log.batch_at_time(timestamp))
    return found[0] if found else None


def test_a_timestamp_is_found_anywhere_in_the_log(bench: Bench) -> None:
    _small_segments(bench)
    for i in range(60):
        bench.append(batch_of(timestamps=[1000 + 10 * i]))
    for _ in range(2):
        for i in range(60):
            assert _at_time(bench, 1000 + 10 * i) == i
            assert _at_time(bench, 1000 + 10 * i - 9) == i
        assert _at_time(bench, 0) == 0
        assert _at_time(bench, 1000 + 590 + 1) is None
        bench.reopen()


def _known(bench: Bench) -> int:
    return sum(segment.knows_max_timestamp for segment in bench.log.segments())


def test_the_timestamps_of_many_segments_are_read_in_slices(bench: Bench) -> None:
    for i in range(3 * SEGMENTS_AT_ONCE):
        bench.log.roll(NOW_MS)
        bench.append(batch_of(timestamps=[1000 + i]))
    bench.reopen()
    known = [_known(bench)]
    known += [_known(bench) for _ in bench.log.reading_timestamps(1000 + SEGMENTS_AT_ONCE)]
    known.append(_known(bench))
    assert known[-1] < 2 * SEGMENTS_AT_ONCE  # no more than it takes to find the timestamp
    known += [_known(bench) for _ in bench.log.reading_timestamps()]
    known.append(_known(bench))
    assert max(after - before for before, after in pairwise(known)) == SEGMENTS_AT_ONCE
    assert known[-1] == len(bench.log.segments())


def test_a_segment_that_is_deleted_while_timestamps_are_read_is_no_disk_error(
    bench: Bench,
) -> None:
    bench.config = dataclasses.replace(TopicConfig(), retention_ms=-1)
    for i in range(3 * SEGMENTS_AT_ONCE):
        bench.log.roll(NOW_MS)
        bench.append(batch_of(timestamps=[1000 + i]))
    bench.reopen()
    steps = bench.log.reading_timestamps()
    next(steps)
    for path in bench.log.remove_oldest(2 * SEGMENTS_AT_ONCE):
        bench.disk.remove(path)
    assert list(steps) == []
    assert _at_time(bench, 0) == 2 * SEGMENTS_AT_ONCE


def test_with_timestamps_out_of_order_the_first_record_that_is_new_enough_is_found(
    bench: Bench,
) -> None:
    times = [500, 100, 900, 200, 900, 300, 700, 1000, 50] * 8
    _small_segments(bench)
    for time in times:
        bench.append(batch_of(timestamps=[time]))
    for _ in range(2):
        for asked in range(0, 1100, 50):
            expected = next((i for i, time in enumerate(times) if time >= asked), None)
            assert _at_time(bench, asked) == expected
        bench.reopen()


def test_a_batch_is_found_by_its_newest_record(bench: Bench) -> None:
    bench.append(batch_of(3, timestamps=[10, 500, 20]))
    bench.append(batch_of(timestamps=[400]))
    assert _at_time(bench, 300) == 0


def test_nothing_below_the_start_of_the_log_is_found_by_time(bench: Bench) -> None:
    for time in (100, 200, 300):
        bench.append(batch_of(timestamps=[time]))
    bench.log.advance_start(Offset(2))
    assert _at_time(bench, 0) == 2


def test_the_search_continues_after_a_batch_without_a_match(bench: Bench) -> None:
    """The record that made the batch match may be below the start of the log."""
    bench.append(batch_of(2, timestamps=[900, 100]))
    bench.append(batch_of(timestamps=[800]))
    bench.log.advance_start(Offset(1))
    assert _at_time(bench, 500) == 0
    assert _bases(bench.log.batch_at_time(500, Offset(2))) == [2]


def test_the_newest_record_is_found(bench: Bench) -> None:
    assert bench.log.batch_of_max_timestamp() is None
    for time in (100, 900, 200, 900, 300):
        bench.append(batch_of(timestamps=[time]))
        bench.log.roll(NOW_MS)
    assert _bases(bench.log.batch_of_max_timestamp()) == [1]
    bench.reopen()
    assert _bases(bench.log.batch_of_max_timestamp()) == [1]


def test_records_without_timestamps_have_no_newest_one(bench: Bench) -> None:
    bench.append(batch_of(timestamps=[-1]))
    assert bench.log.batch_of_max_timestamp() is None
    assert _at_time(bench, 0) is None


# -- appends ------------------------------------------------------------------------------------


def test_a_leader_assigns_offsets_and_its_epoch(bench: Bench) -> None:
    bench.epoch = 5
    assert bench.append(batch_of(3)).last_offset == 2
    assert bench.append(batch_of(2)).base_offset == 3
    assert [(h.base_offset, h.partition_leader_epoch) for h in bench.headers()] == [(0, 5), (3, 5)]
    assert bench.log.epochs.entries() == [(5, 0)]


def test_nothing_is_appended_in_an_older_epoch(bench: Bench) -> None:
    bench.epoch = 5
    bench.append()
    bench.epoch = 4
    with pytest.raises(FencedLeaderEpoch):
        bench.append()
    assert bench.log.end_offset == 1


def test_a_duplicate_returns_the_original_offset_and_is_not_stored(bench: Bench) -> None:
    first = bench.append(batch_of(2, producer=(7, 0, 0)))
    bench.append(batch_of(3, producer=(7, 0, 2)))
    again = bench.append(batch_of(2, producer=(7, 0, 0)))
    assert again.is_duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert bench.log.end_offset == 5


def test_a_follower_keeps_the_leaders_offsets_and_epochs(bench: Bench) -> None:
    records = (
        batch_of(2, epoch=3) + batch_of(base_offset=2, epoch=3) + batch_of(base_offset=9, epoch=4)
    )
    bench.log.append_as_follower(memoryview(records), LeaderEpoch(4), NOW_MS)
    assert [h.base_offset for h in bench.headers()] == [0, 2, 9]
    assert bench.log.epochs.entries() == [(3, 0), (4, 9)]
    assert bench.log.end_offset == 10


def test_a_follower_ignores_an_incomplete_batch_at_the_end(bench: Bench) -> None:
    records = batch_of(epoch=0) + batch_of(base_offset=1, epoch=0)[:-1]
    bench.log.append_as_follower(memoryview(records), LeaderEpoch(0), NOW_MS)
    assert bench.log.end_offset == 1


def test_a_follower_refuses_batches_out_of_order(bench: Bench) -> None:
    for epoch, base, fetched_under, error in [
        (3, 0, 3, None),
        (3, 0, 3, InvalidRecord),
        (2, 1, 3, InvalidRecord),
        (5, 1, 4, InvalidRecord),
    ]:
        batch = memoryview(batch_of(base_offset=base, epoch=epoch))
        if error is None:
            bench.log.append_as_follower(batch, LeaderEpoch(fetched_under), NOW_MS)
        else:
            with pytest.raises(error):
                bench.log.append_as_follower(batch, LeaderEpoch(fetched_under), NOW_MS)
    assert bench.log.end_offset == 1
    assert bench.log.epochs.entries() == [(3, 0)]


def test_a_follower_refuses_a_damaged_batch(bench: Bench) -> None:
    good, bad = batch_of(epoch=0), batch_of(base_offset=1, epoch=0)
    bad[-1] ^= 1
    with pytest.raises(CorruptMessage):
        bench.log.append_as_follower(memoryview(good + bad), LeaderEpoch(0), NOW_MS)
    assert bench.log.end_offset == 1


def test_t19_aborted_transactions_are_listed_by_first_offset_also_those_that_began_before() -> None:
    bench = Bench()
    for producer_id in (1, 2, 3):
        bench.append(batch_of(producer=(producer_id, 0, 0), transactional=True))
    bench.log.roll(NOW_MS)
    for producer_id in (3, 1, 2):
        bench.append_marker(producer_id, 0, MarkerType.ABORT)
    found = bench.log.aborted_between(Offset(1), bench.log.end_offset)
    assert [(each.producer_id, each.first_offset) for each in found] == [(1, 0), (2, 1), (3, 2)]


def _aborted_one_by_one(bench: Bench, count: int, first_id: int = 0) -> None:
    """Of each producer a record and its abort marker."""
    for producer_id in range(first_id, first_id + count):
        bench.append(batch_of(producer=(producer_id, 0, 0), transactional=True))
        bench.append_marker(producer_id, 0, MarkerType.ABORT)


def _aborted_in_read(bench: Bench, offset: int, bytes_max: int) -> list[int]:
    log = bench.log
    found = log.read(Offset(offset), bytes_max, log.end_offset, whole_batch=True)
    assert found is not None
    return [each.producer_id for each in log.aborted_between(Offset(offset), log.end_offset, found)]


def test_aborted_transactions_are_listed_up_to_the_end_of_what_was_read() -> None:
    bench = Bench(config=TopicConfig(index_interval_bytes=0))
    _aborted_one_by_one(bench, 20)
    bench.log.roll(NOW_MS)
    _aborted_one_by_one(bench, 20, first_id=20)
    assert _aborted_in_read(bench, 0, 1) == [0]
    assert _aborted_in_read(bench, 6, 1) == [3]
    assert _aborted_in_read(bench, 38, 1 << 20) == [19]  # A read ends with its segment.
    assert _aborted_in_read(bench, 40, 1 << 20) == list(range(20, 40))


def test_aborted_transactions_are_listed_up_to_the_next_index_entry_beyond_what_was_read() -> None:
    """As the offset index is sparse, there may be more than needed, never fewer."""
    bench = Bench(config=TopicConfig(index_interval_bytes=1000))
    _aborted_one_by_one(bench, 40)
    assert _aborted_in_read(bench, 0, 1)[0] == 0
    assert len(_aborted_in_read(bench, 0, 1)) < 20
    assert _aborted_in_read(bench, 70, 1) == [35, 36, 37, 38, 39]


def test_an_index_entry_with_an_offset_that_is_too_low_hides_no_aborted_transaction() -> None:
    bench = Bench(config=TopicConfig(index_interval_bytes=0))
    _aborted_one_by_one(bench, 20)
    bench.reopen()
    read = bench.log.read(Offset(20), 1000, bench.log.end_offset, whole_batch=True)
    assert read is not None
    index = bench.log.active.offset_index
    end = read.position + read.size_bytes
    number = next(each for each in range(len(index)) if index.entry(each)[1] >= end)
    bench.sim.overwrite(index.path, (21).to_bytes(4, "big"), number * 8)
    bench.open()
    assert _aborted_in_read(bench, 20, 1000)[:5] == [10, 11, 12, 13, 14]


def test_t19_a_transaction_that_ends_long_after_what_was_read_is_listed() -> None:
    bench = Bench(config=TopicConfig(index_interval_bytes=0))
    bench.append(batch_of(producer=(77, 0, 0), transactional=True))
    for sequence in range(3):
        bench.log.roll(NOW_MS)
        bench.append(batch_of())
        bench.append(batch_of(producer=(78, 0, sequence), transactional=True))
        bench.append_marker(78, 0, MarkerType.ABORT)
    bench.append_marker(77, 0, MarkerType.ABORT)
    assert _aborted_in_read(bench, 0, 1) == [77]
    assert _aborted_in_read(bench, 1, 1) == [77]
    assert _aborted_in_read(bench, 1, 1 << 20) == [77, 78]


def test_a_search_for_aborted_transactions_ends_with_the_segment_that_has_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    for _ in range(5):
        _aborted_one_by_one(bench, 1, first_id=bench.log.end_offset)
        bench.log.roll(NOW_MS)
    looked_at = []
    entries = TxnIndex.entries

    def counted(index: TxnIndex) -> list[AbortedTxn]:
        looked_at.append(index.path)
        return entries(index)

    monkeypatch.setattr(TxnIndex, "entries", counted)
    assert len(_aborted_in_read(bench, 0, 1 << 20)) == 1
    assert len(set(looked_at)) == 1
