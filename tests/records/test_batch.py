"""The batch header: what is read, what is refused, what is patched."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.model.errors import CorruptMessage, UnsupportedCompressionType
from suwi.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    compute_crc,
    place,
    read_header,
    stamp,
)
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record, iter_records
from suwi.records.validate import BatchRules, validate_produced_batch
from tests.records.strategies import codecs, record_lists

ONE = [Record(timestamp=1000, key=b"k", value=b"v")]
THREE = [Record(timestamp=1000 + n, value=b"v%d" % n) for n in range(3)]


def a_header(**fields: int) -> BatchHeader:
    return read_header(build_batch(ONE))._replace(**fields)


def test_a_header_is_61_bytes_in_the_order_of_the_file_format() -> None:
    batch = build_batch(
        THREE,
        base_offset=70,
        codec=Compression.GZIP,
        leader_epoch=4,
        producer_id=9,
        producer_epoch=2,
        base_sequence=11,
        transactional=True,
    )
    header = read_header(batch)
    assert struct.unpack(">qiibIhiqqqhii", batch[:HEADER_BYTES]) == header
    assert header == (
        70,
        len(batch) - 12,
        4,
        2,
        compute_crc(batch, 0, len(batch)),
        1 | 0x10,
        2,
        1000,
        1002,
        9,
        2,
        11,
        3,
    )
    assert header.size_bytes == len(batch)
    assert (header.last_offset, header.next_offset) == (72, 73)
    assert header.codec is Compression.GZIP
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert not header.uses_log_append_time
    assert not header.has_delete_horizon


def test_the_crc_is_castagnolis_over_everything_from_the_attributes_on() -> None:
    # The check value of CRC-32C, at a chosen position.
    buffer = bytes(5 + 21) + b"123456789" + b"beyond"
    assert compute_crc(buffer, 5, 21 + 9) == 0xE3069283


def test_sequences_wrap_after_the_largest_int32() -> None:
    assert a_header(base_sequence=5, last_offset_delta=3).last_sequence == 8
    assert a_header(base_sequence=2**31 - 1, last_offset_delta=0).last_sequence == 2**31 - 1
    assert a_header(base_sequence=2**31 - 1, last_offset_delta=1).last_sequence == 0
    assert a_header(base_sequence=2**31 - 2, last_offset_delta=4).last_sequence == 2
    assert a_header(base_sequence=-1, last_offset_delta=4).last_sequence == -1


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_reported(number: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        _ = a_header(attributes=number).codec


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_a_header_that_is_cut_off_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptMessage):
        read_header(build_batch(ONE)[:size])


def test_a_header_at_the_end_of_a_buffer_needs_all_its_bytes() -> None:
    batch = build_batch(ONE)
    assert read_header(batch + batch, len(batch)) == read_header(batch)
    with pytest.raises(CorruptMessage):
        read_header(batch + batch[:60], len(batch))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_smaller_than_a_header_is_corrupt(length: int) -> None:
    batch = build_batch(ONE)
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptMessage):
        read_header(batch)


@pytest.mark.parametrize("magic", [-1, 0, 1, 3, 127])
def test_only_format_2_is_read(magic: int) -> None:
    batch = build_batch(ONE)
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(CorruptMessage):
        read_header(batch)


def test_a_header_can_be_read_without_its_records() -> None:
    batch = build_batch(THREE)
    assert read_header(batch[:HEADER_BYTES]).size_bytes == len(batch)


def test_iteration_returns_complete_batches_and_skips_an_incomplete_one_at_the_end() -> None:
    first, second = build_batch(THREE), build_batch(ONE, base_offset=3)
    whole = bytes(first + second)
    expected = [(0, read_header(first)), (len(first), read_header(second))]
    assert list(batches(whole)) == expected
    for cut in range(len(first), len(whole)):
        assert list(batches(memoryview(whole)[:cut])) == expected[:1]
    assert list(batches(b"")) == []


def test_iteration_raises_at_a_damaged_header() -> None:
    first = build_batch(ONE)
    broken = bytearray(first)
    broken[16] = 9
    walk = batches(bytes(first + broken))
    assert next(walk)[0] == 0
    with pytest.raises(CorruptMessage):
        next(walk)


def test_placing_a_batch_changes_offset_and_epoch_and_leaves_the_crc_valid() -> None:
    batch = build_batch(THREE)
    before = read_header(batch)
    place(memoryview(batch), 2**40, 17)
    assert read_header(batch) == before._replace(base_offset=2**40, partition_leader_epoch=17)
    assert compute_crc(batch, 0, len(batch)) == before.crc
    assert [record.offset for record in iter_records(batch, read_header(batch))] == [
        2**40,
        2**40 + 1,
        2**40 + 2,
    ]


def test_placing_a_batch_inside_a_larger_buffer_touches_nothing_else() -> None:
    batch = build_batch(ONE)
    buffer = bytearray(b"<" * 7 + batch + b">" * 7)
    place(memoryview(buffer)[7:-7], 5, 6)
    assert buffer[:7] == b"<" * 7
    assert buffer[-7:] == b">" * 7
    assert read_header(buffer, 7).base_offset == 5


@given(record_lists(), codecs, st.integers(0, 2**45))
def test_stamping_gives_every_record_the_append_time(
    records: list[Record], codec: Compression, now_ms: int
) -> None:
    batch = build_batch(records, codec=codec)
    before = read_header(batch)
    stamp(memoryview(batch), now_ms)
    after = read_header(batch)
    assert after.uses_log_append_time
    assert after.max_timestamp == now_ms
    assert after.base_timestamp == before.base_timestamp
    assert after.crc == compute_crc(batch, 0, len(batch))
    decoded = list(iter_records(batch, after))
    assert {record.timestamp for record in decoded} == {now_ms}
    assert [record.value for record in decoded] == [record.value for record in records]


@given(record_lists(), codecs, st.data())
def test_any_flipped_bit_under_the_crc_is_detected(
    records: list[Record], codec: Compression, data: st.DataObject
) -> None:
    batch = build_batch(records, codec=codec)
    header = read_header(batch)
    bit = data.draw(st.integers(17 * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CorruptMessage):
        validate_produced_batch(
            batch,
            # The fields under the CRC; the others as they were sent.
            header._replace(crc=read_header(batch).crc),
            rules=BatchRules(),
            now_ms=2**45,
            produce_version=9,
        )


def test_every_single_flipped_bit_of_one_batch_is_detected() -> None:
    batch = build_batch(THREE)
    for bit in range(17 * 8, len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << (bit % 8)
        assert compute_crc(flipped, 0, len(flipped)) != read_header(flipped).crc


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_header_or_corrupt(junk: bytes) -> None:
    try:
        for position, header in batches(junk):
            assert position + header.size_bytes <= len(junk)
    except CorruptMessage:
        pass
