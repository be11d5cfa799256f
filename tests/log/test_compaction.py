"""Compaction: the newest record of each key is kept, and everything else that must be."""

import pytest

from suwi.log import names
from suwi.model.errors import InvalidProducerEpoch
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.compression import Compression
from suwi.records.record import MarkerType, iter_records
from tests.log.compaction_kit import (
    COMPACT,
    compact,
    compacted_bench,
    keyed,
    keys_and_values,
    markers_in,
    plan,
    producers_of,
    put,
    seen_in,
)
from tests.log.kit import NOW_MS, Bench, batches_in


def test_the_newest_record_of_each_key_stays_at_its_offset(compacting: Bench) -> None:
    bench = compacting
    put(bench, ("a", "1"), ("b", "1"), ("a", "2"), roll=True)
    put(bench, ("c", "1"), ("b", "2"), roll=True)
    put(bench, ("a", "active"))
    compact(bench)
    assert keys_and_values(bench.log) == [("a", "2"), ("c", "1"), ("b", "2"), ("a", "active")]
    assert [seen.offset for seen in seen_in(bench.log)] == [2, 3, 4, 5]
    before = seen_in(bench.log)
    bench.reopen()
    assert seen_in(bench.log) == before
    bench.recover()
    assert seen_in(bench.log) == before


def test_the_active_segment_is_never_touched() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"))
    put(bench, ("a", "2"))
    assert compact(bench) is None
    assert keys_and_values(bench.log) == [("a", "1"), ("a", "2")]


def test_nothing_at_or_above_the_high_watermark_is_touched() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"), roll=True)
    put(bench, ("a", "2"), roll=True)
    put(bench, ("a", "3"), roll=True)
    planned = plan(bench, stable=1)
    assert planned is not None
    assert planned.end == 1
    assert plan(bench, stable=0) is None


def test_nothing_from_the_first_open_transaction_on_is_touched() -> None:
    """Hazard T16."""
    bench = compacted_bench()
    put(bench, ("a", "1"), ("a", "2"), roll=True)
    bench.append(keyed([(b"a", b"open")], producer=(1, 0, 0), transactional=True))
    bench.log.roll(NOW_MS)
    put(bench, ("a", "3"), roll=True)
    done = compact(bench)
    assert done is not None
    assert done.end == 2
    assert keys_and_values(bench.log) == [("a", "2"), ("a", "open"), ("a", "3")]


def test_small_segments_are_merged() -> None:
    bench = compacted_bench()
    for number in range(6):
        put(bench, ("a", str(number)), (f"k{number}", "v"), roll=True)
    assert len(bench.log.segments()) == 7
    compact(bench)
    assert len(bench.log.segments()) == 2
    assert [s.base_offset for s in bench.log.segments()] == [0, 12]


def test_segments_are_merged_up_to_segment_bytes() -> None:
    bench = compacted_bench()
    for number in range(12):
        put(bench, (f"k{number}", "v" * 300), roll=True)
    compact(bench)
    sizes = [segment.size_bytes for segment in bench.log.segments()]
    assert max(sizes) <= COMPACT.segment_bytes
    assert len(sizes) < 12
    assert len(seen_in(bench.log)) == 12


def test_segments_are_merged_up_to_the_largest_relative_offset() -> None:
    bench = compacted_bench()
    for base in (0, 2**31 - 2, 2**31, 2**32):
        batch = keyed([(b"k%d" % base, b"v")])
        batch[0:8] = base.to_bytes(8, "big")
        batch[12:16] = (0).to_bytes(4, "big")
        bench.log.append_as_follower(memoryview(batch), bench.log.epochs.latest + 1, NOW_MS)  # type: ignore[arg-type]
        bench.log.roll(NOW_MS)
    compact(bench)
    assert [seen.offset for seen in seen_in(bench.log)] == [0, 2**31 - 2, 2**31, 2**32]
    bench.recover()
    assert [seen.offset for seen in seen_in(bench.log)] == [0, 2**31 - 2, 2**31, 2**32]


def test_a_batch_without_removed_records_stays_byte_for_byte() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"), ("b", "1"), roll=True)
    put(bench, ("c", "1"))
    before = batches_in(bench.log)
    compact(bench)
    assert batches_in(bench.log) == before


@pytest.mark.parametrize("codec", list(Compression))
def test_a_changed_batch_keeps_all_but_the_removed_records(codec: Compression) -> None:
    bench = compacted_bench()
    bench.epoch = 5
    bench.append(
        keyed(
            [(b"a", b"1"), (b"b", b"1" * 200), (b"c", b"")],
            producer=(7, 3, 11),
            codec=codec,
            timestamp=NOW_MS - 50,
        )
    )
    bench.log.roll(NOW_MS)
    put(bench, ("c", "later"), roll=True)
    (_, before), *_ = batches_in(bench.log)
    compact(bench)
    (batch, after), *_ = batches_in(bench.log)
    assert after.codec is codec
    assert after.record_count == 2
    unchanged = (
        "base_offset partition_leader_epoch magic attributes last_offset_delta base_timestamp "
        "producer_id producer_epoch base_sequence"
    )
    for field in unchanged.split():
        assert getattr(after, field) == getattr(before, field)
    assert after.max_timestamp == NOW_MS - 49, "the newest remaining one"
    records = list(iter_records(batch, after))
    assert [(r.offset, r.key, r.value) for r in records] == [(0, b"a", b"1"), (1, b"b", b"1" * 200)]
    assert [r.timestamp for r in records] == [NOW_MS - 50, NOW_MS - 49]
    assert records[0].headers == (("h", b"1"),)


def test_a_record_without_a_key_is_removed() -> None:
    """Written before the topic was compacted."""
    bench = compacted_bench()
    bench.append(keyed([(None, b"1"), (b"a", b"1")]))
    bench.log.roll(NOW_MS)
    compact(bench)
    assert keys_and_values(bench.log) == [("a", "1")]


def test_the_files_keep_the_modification_time_of_those_they_replace(compacting: Bench) -> None:
    bench = compacting
    put(bench, ("a", "1"), roll=True)
    put(bench, ("a", "2"), roll=True)
    bench.disk.set_modified_ms(bench.path(1), 1_234_000)
    compact(bench)
    assert bench.disk.modified_ms(bench.path(0)) == 1_234_000


# -- tombstones --------------------------------------------------------------------------------


def test_a_tombstone_outlives_its_first_cleaning_by_delete_retention_ms() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"), ("b", "1"), roll=True)
    put(bench, ("a", None), roll=True)
    compact(bench)
    assert keys_and_values(bench.log) == [("b", "1"), ("a", None)]
    stamped = [header for header in bench.headers() if header.has_delete_horizon]
    assert [header.base_timestamp for header in stamped] == [NOW_MS + 1000]
    bench.now_ms += 999
    put(bench, ("c", "1"), roll=True)
    compact(bench)
    assert ("a", None) in keys_and_values(bench.log)
    bench.now_ms += 1
    put(bench, ("c", "2"), roll=True)
    compact(bench)
    assert keys_and_values(bench.log) == [("b", "1"), ("c", "2")]


def test_a_stamped_batch_keeps_its_horizon_and_the_times_of_its_records() -> None:
    bench = compacted_bench()
    bench.append(keyed([(b"a", None), (b"b", b"1"), (b"c", b"1")], timestamp=NOW_MS - 70))
    bench.log.roll(NOW_MS)
    compact(bench)
    bench.now_ms += 500
    put(bench, ("c", "2"), roll=True)
    compact(bench)
    header = bench.headers()[0]
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + 1000
    assert header.max_timestamp == NOW_MS - 69
    assert [seen.timestamp for seen in seen_in(bench.log)][:2] == [NOW_MS - 70, NOW_MS - 69]


def test_a_stamped_batch_of_log_append_time_keeps_it() -> None:
    bench = compacted_bench()
    bench.append(keyed([(b"a", None), (b"b", b"1")], log_append_time_ms=NOW_MS - 5))
    bench.log.roll(NOW_MS)
    compact(bench)
    assert bench.headers()[0].has_delete_horizon
    assert bench.headers()[0].uses_log_append_time
    assert [seen.timestamp for seen in seen_in(bench.log)] == [NOW_MS - 5] * 2


# -- producers and transactions ----------------------------------------------------------------


def test_a_producer_can_continue_after_all_its_records_were_compacted_away() -> None:
    """Hazard 18. Without its last batch, at least the header, it would be unknown."""
    bench = compacted_bench()
    for sequence in range(3):
        bench.append(keyed([(b"a", b"idempotent")], producer=(7, 2, sequence)))
    bench.log.roll(NOW_MS)
    put(bench, ("a", "other"), roll=True)
    compact(bench)
    assert keys_and_values(bench.log) == [("a", "other")]
    for name in bench.names():
        if name.endswith(names.SNAPSHOT):
            bench.disk.remove(f"{bench.dir}/{name}")
    bench.recover()
    assert bench.append(keyed([(b"a", b"idempotent")], producer=(7, 2, 2))).is_duplicate
    with pytest.raises(InvalidProducerEpoch):
        bench.append(keyed([(b"a", b"x")], producer=(7, 1, 0)))
    assert not bench.append(keyed([(b"a", b"next")], producer=(7, 2, 3))).is_duplicate


def test_the_batch_of_an_expired_producer_is_removed() -> None:
    bench = compacted_bench()
    bench.append(keyed([(b"a", b"1")], producer=(7, 2, 0)))
    bench.log.roll(NOW_MS)
    put(bench, ("a", "other"), roll=True)
    bench.log.producers.expire(NOW_MS + 10_000, 1000)
    compact(bench)
    assert [header.producer_id for header in bench.headers()] == [-1]


def test_records_of_an_aborted_transaction_are_removed_and_supersede_nothing() -> None:
    """Hazard T16."""
    bench = compacted_bench()
    put(bench, ("a", "1"))
    bench.append(
        keyed([(b"a", b"aborted"), (b"b", b"aborted")], producer=(1, 0, 0), transactional=True)
    )
    bench.append_marker(1, 0, MarkerType.ABORT)
    bench.append(keyed([(b"c", b"committed")], producer=(2, 0, 0), transactional=True))
    bench.append_marker(2, 0, MarkerType.COMMIT)
    bench.log.roll(NOW_MS)
    put(bench, ("x", "1"))
    compact(bench)
    assert keys_and_values(bench.log) == [("a", "1"), ("c", "committed"), ("x", "1")]


def test_a_transaction_is_aborted_although_its_marker_is_in_a_later_segment() -> None:
    """Hazard T16. If it counted as committed, its records would delete those of others."""
    bench = compacted_bench()
    put(bench, ("a", "1"), roll=True)
    bench.append(keyed([(b"a", b"aborted")], producer=(1, 0, 0), transactional=True))
    bench.log.roll(NOW_MS)
    bench.append_marker(1, 0, MarkerType.ABORT)
    compact(bench)
    assert keys_and_values(bench.log) == [("a", "1")]


def test_a_marker_stays_until_its_records_are_removed_and_the_delete_horizon_has_passed() -> None:
    """Hazard T16 (KIP-534)."""
    bench = compacted_bench()
    for sequence, key in enumerate((b"a", b"b")):
        bench.append(keyed([(key, b"1")], producer=(1, 0, sequence), transactional=True))
    bench.append_marker(1, 0, MarkerType.ABORT)
    bench.append(keyed([(b"z", b"1")], producer=(1, 0, 2)))
    bench.log.roll(NOW_MS)
    aborted = bench.log.aborted_between(Offset(0), Offset(10))
    compact(bench)
    assert len(markers_in(bench.log)) == 1
    assert not markers_in(bench.log)[0].has_delete_horizon, "its records were removed only now"
    assert bench.log.aborted_between(Offset(0), Offset(10)) == aborted
    put(bench, ("x", "1"), roll=True)
    compact(bench)
    assert markers_in(bench.log)[0].has_delete_horizon
    assert bench.log.aborted_between(Offset(0), Offset(10)) == []
    bench.now_ms += 1000
    put(bench, ("x", "2"), roll=True)
    compact(bench)
    assert markers_in(bench.log) == []


def test_a_marker_with_the_only_trace_of_a_producers_epoch_stays_as_an_empty_batch() -> None:
    bench = compacted_bench()
    bench.append(keyed([(b"a", b"1")], producer=(1, 0, 0), transactional=True))
    bench.append_marker(1, 4, MarkerType.COMMIT)
    bench.log.roll(NOW_MS)
    for value in range(3):
        put(bench, ("a", str(value)), roll=True)
        compact(bench)
        bench.now_ms += 1000
    (marker,) = markers_in(bench.log)
    assert (marker.record_count, marker.producer_epoch) == (0, 4)
    before = producers_of(bench.log)
    bench.reopen()
    for name in bench.names():
        if name.endswith(names.SNAPSHOT):
            bench.disk.remove(f"{bench.dir}/{name}")
    bench.recover()
    assert producers_of(bench.log) == before
    with pytest.raises(InvalidProducerEpoch):
        bench.append(keyed([(b"a", b"zombie")], producer=(1, 3, 0)))


# -- scope -------------------------------------------------------------------------------------


def test_a_map_that_is_too_small_cleans_what_fits_and_continues_from_there() -> None:
    bench = compacted_bench()
    for number in range(40):
        put(bench, (f"k{number % 20}", str(number)), roll=number % 4 == 3)
    rounds = 0
    while compact(bench, map_bytes=24 * 8) is not None:
        rounds += 1
    assert 3 < rounds < 40
    assert keys_and_values(bench.log) == [(f"k{n % 20}", str(n)) for n in range(20, 40)]


def test_batches_beyond_the_map_stay_byte_for_byte() -> None:
    """Its tombstones too: with an early delete horizon they could be removed too early."""
    bench = compacted_bench()
    put(bench, *((f"k{number}", "1") for number in range(6)))
    bench.append(keyed([(b"k1", None), (None, b"no key")]))
    bench.log.roll(NOW_MS)
    before = batches_in(bench.log)
    done = compact(bench, map_bytes=24 * 8)
    assert done is not None
    assert done.end == 6
    assert batches_in(bench.log) == before
    compact(bench, map_bytes=24 * 8)
    assert ("k1", None) in keys_and_values(bench.log)
    assert bench.headers()[-1].has_delete_horizon


def test_a_batch_larger_than_the_map_is_still_cleaned() -> None:
    bench = compacted_bench(TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    put(bench, *((f"k{number}", "1") for number in range(100)), roll=True)
    put(bench, *((f"k{number}", "2") for number in range(100)), roll=True)
    while compact(bench, map_bytes=1) is not None:
        pass
    assert keys_and_values(bench.log) == [(f"k{number}", "2") for number in range(100)]


def test_a_log_is_cleaned_by_its_dirty_ratio() -> None:
    config = TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5)
    bench = compacted_bench(config)
    put(bench, ("a", "1" * 1000), roll=True)
    first = plan(bench)
    assert first is not None
    assert first.dirty_ratio == 1.0
    assert first.is_due
    compact(bench)
    put(bench, ("b", "1"), roll=True)
    second = plan(bench)
    assert second is not None
    assert not second.is_due


def test_a_record_is_not_compacted_before_min_compaction_lag_ms() -> None:
    config = TopicConfig(
        cleanup_policy=("compact",), min_compaction_lag_ms=100, min_cleanable_dirty_ratio=0.0
    )
    bench = compacted_bench(config)
    put(bench, ("a", "1"), roll=True)
    put(bench, ("a", "2"), roll=True)
    assert plan(bench) is None
    bench.now_ms += 101
    assert plan(bench) is not None


def test_a_record_is_compacted_by_max_compaction_lag_ms_however_clean_the_log_is() -> None:
    config = TopicConfig(
        cleanup_policy=("compact",), max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0
    )
    bench = compacted_bench(config)
    put(bench, ("a", "1"), roll=True)
    planned = plan(bench)
    assert planned is not None
    assert not planned.is_due
    bench.now_ms += 101
    planned = plan(bench)
    assert planned is not None
    assert planned.is_due


def test_the_active_segment_is_rolled_for_max_compaction_lag_ms() -> None:
    bench = compacted_bench(TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=100))
    put(bench, ("a", "1"))
    bench.append(keyed([(b"a", b"2")], timestamp=NOW_MS + 101))
    assert len(bench.log.segments()) == 2


def test_a_truncated_compacted_log_is_dirty_again_from_the_truncation_offset() -> None:
    bench = compacted_bench()
    put(bench, ("a", "1"), roll=True)
    put(bench, ("b", "1"), roll=True)
    compact(bench)
    assert bench.log.cleaned_to == 2
    bench.truncate_to(Offset(1))
    assert bench.log.cleaned_to == 1
