"""Building batches: records survive the round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.records.batch import compute_crc, read_header
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record, iter_records
from tests.records.strategies import codecs, record_lists

any_timestamp = st.integers(-(2**63), 2**63 - 1)


@given(record_lists(any_timestamp), codecs, st.integers(0, 2**62))
def test_records_survive_the_round_trip(
    records: list[Record], codec: Compression, base_offset: int
) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    header = read_header(batch)
    assert header.codec is codec
    assert header.record_count == header.last_offset_delta + 1 == len(records)
    assert header.crc == compute_crc(batch, 0, len(batch))
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(-1, *(record.timestamp for record in records))
    assert list(iter_records(batch, header)) == [
        record._replace(offset=base_offset + n) for n, record in enumerate(records)
    ]


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(0, 100))
def test_gaps_between_offsets_are_kept(deltas: set[int], beyond: int) -> None:
    offsets = [500 + delta for delta in sorted(deltas)]
    batch = build_batch(
        [Record(offset=offset) for offset in offsets],
        base_offset=500,
        last_offset=offsets[-1] + beyond,
    )
    header = read_header(batch)
    assert header.last_offset == offsets[-1] + beyond
    assert header.record_count == len(offsets)
    assert [record.offset for record in iter_records(batch, header)] == offsets


def test_a_record_without_an_offset_gets_the_next_one() -> None:
    batch = build_batch([Record(offset=3), Record(), Record(offset=9), Record()])
    assert [r.offset for r in iter_records(batch, read_header(batch))] == [3, 4, 9, 10]


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4]])
def test_offsets_that_do_not_increase_raise_value_error(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="is not increasing"):
        build_batch([Record(offset=offset) for offset in offsets], base_offset=5)


def test_an_empty_batch_needs_a_last_offset() -> None:
    with pytest.raises(ValueError, match="needs a last offset"):
        build_batch([])
    batch = build_batch([], base_offset=10, last_offset=14)
    header = read_header(batch)
    assert (header.base_offset, header.next_offset, header.record_count) == (10, 15, 0)
    assert list(iter_records(batch, header)) == []


def test_a_last_offset_before_the_last_record_raises_value_error() -> None:
    with pytest.raises(ValueError, match="before the last record"):
        build_batch([Record(), Record()], last_offset=0)


def test_log_append_time_holds_for_every_record() -> None:
    batch = build_batch([Record(timestamp=5), Record(timestamp=900)], log_append_time_ms=70)
    header = read_header(batch)
    assert header.uses_log_append_time
    assert header.max_timestamp == 70
    assert [record.timestamp for record in iter_records(batch, header)] == [70, 70]


def test_a_record_of_a_megabyte_with_every_codec() -> None:
    value = bytes(range(256)) * 4096
    for codec in Compression:
        batch = build_batch([Record(value=value)], codec=codec)
        (record,) = iter_records(batch, read_header(batch))
        assert record.value == value
