"""Decoding records: strict, and with bounded memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.model.errors import InvalidRecord
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import build_batch, build_marker, seal
from suwi.records.compression import Compression
from suwi.records.record import (
    Marker,
    MarkerType,
    Record,
    iter_records,
    read_marker,
    records_section,
    scan_keys,
)
from suwi.records.retain import empty_batch
from tests.records.strategies import codecs, record_lists

# length 7: attributes, time delta 0, offset delta 0, key null, value "v", no headers
MINIMAL = bytes([14, 0, 0, 0, 1, 2, ord("v"), 0])


def decode(section: bytes, *, count: int = 1, last_offset_delta: int | None = None) -> list[Record]:
    header = read_header(build_batch([Record(timestamp=50)]))._replace(
        record_count=count,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
    )
    batch = seal(header, section)
    return list(iter_records(batch, read_header(batch)))


def with_length(*body: int) -> bytes:
    assert len(body) < 64
    return bytes([len(body) * 2, *body])


def test_the_smallest_record_is_read() -> None:
    assert decode(MINIMAL) == [Record(0, 50, None, b"v", ())]


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(MINIMAL[:-1], id="cut off"),
        pytest.param(MINIMAL + b"\0", id="bytes left over"),
        pytest.param(bytes([16]) + MINIMAL[1:] + b"\0", id="record longer than its fields"),
        pytest.param(bytes([12]) + MINIMAL[1:], id="record shorter than its fields"),
        pytest.param(bytes([1]) + MINIMAL[1:], id="negative record length"),
        pytest.param(b"\xff\xff\xff\xff\x0f" + MINIMAL[1:], id="record length -2^31"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + MINIMAL[1:], id="record length 2^31 - 1"),
        pytest.param(b"\x8e\x80\x80\x80\x80\x00" + MINIMAL[1:], id="varint of 6 bytes"),
        pytest.param(b"\xff\xff\xff\xff\x1f" + MINIMAL[1:], id="varint of 33 bits"),
        pytest.param(b"\x80", id="varint without an end"),
        pytest.param(with_length(0, *[0x80] * 10, 0, 0, 1, 1, 0), id="varlong of 11 bytes"),
        pytest.param(with_length(0, *[0xFF] * 9, 2, 0, 1, 1, 0), id="varlong of 65 bits"),
        pytest.param(with_length(0, 0, 0, 3, 1, 0), id="key length -2"),
        pytest.param(with_length(0, 0, 0, 1, 3, 0), id="value length -2"),
        pytest.param(with_length(0, 0, 0, 126, 1, 0), id="key beyond the end"),
        pytest.param(with_length(0, 0, 0, 1, 126, 0), id="value beyond the end"),
        pytest.param(with_length(0, 0, 0, 1, 1, 1), id="header count -1"),
        pytest.param(with_length(0, 0, 0, 1, 1, 2), id="header missing"),
        pytest.param(with_length(0, 0, 0, 1, 1, 2, 1, 1), id="header key null"),
        pytest.param(with_length(0, 0, 0, 1, 1, 2, 0, 3), id="header value length -2"),
        pytest.param(with_length(0, 0, 0, 1, 1, 2, 0, 8), id="header value beyond the end"),
        pytest.param(
            with_length(0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 0, 1),
            id="two thousand million headers",
        ),
        pytest.param(with_length(0, 0, 1, 1, 1, 0), id="offset delta -1"),
        pytest.param(with_length(0, 0, 2, 1, 1, 0), id="offset delta beyond the batch"),
    ],
)
def test_a_malformed_record_is_invalid(section: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode(section)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 3, 2**31 - 1])
def test_the_record_count_must_match_the_header(count: int) -> None:
    second = bytes([14, 0, 0, 2, 1, 2, ord("w"), 0])
    assert len(decode(MINIMAL + second, count=2)) == 2
    with pytest.raises(InvalidRecord):
        decode(MINIMAL + second, count=count, last_offset_delta=1)


def test_offsets_must_increase() -> None:
    with pytest.raises(InvalidRecord):
        decode(MINIMAL + MINIMAL, count=2)


def test_the_longest_allowed_varints_are_read() -> None:
    padded = b"\x8e\x80\x80\x80\x00" + MINIMAL[1:]  # a varint may be padded to 5 bytes
    assert decode(padded) == decode(MINIMAL)
    largest = with_length(0, *[0xFE] + [0xFF] * 8 + [1], 0, 1, 1, 0)
    # 50 + (2^63 - 1) wraps around, as in Java.
    assert decode(largest)[0].timestamp == 50 - 2**63 - 1


def test_a_batch_that_ends_early_is_invalid() -> None:
    batch = build_batch([Record(value=b"v" * 20)])
    for size in range(HEADER_BYTES, len(batch)):
        with pytest.raises(InvalidRecord):
            list(iter_records(batch[:size], read_header(batch)))


def test_bytes_after_the_batch_are_ignored() -> None:
    batch = build_batch([Record(value=b"v")])
    assert [r.value for r in iter_records(batch + b"more", read_header(batch))] == [b"v"]


def test_a_header_key_that_is_not_utf8_survives_a_round_trip() -> None:
    odd = with_length(0, 0, 0, 1, 1, 2, 4, 0xFF, 0xC0, 1)
    (record,) = decode(odd)
    assert build_batch([record])[HEADER_BYTES:] == odd


@given(st.binary(max_size=300), st.integers(-1, 20), codecs)
def test_arbitrary_sections_decode_or_are_invalid(
    section: bytes, count: int, codec: Compression
) -> None:
    header = read_header(build_batch([Record()]))
    batch = seal(
        header._replace(record_count=count, last_offset_delta=count - 1, attributes=codec), section
    )
    try:
        assert len(list(iter_records(batch, read_header(batch)))) == count
    except InvalidRecord:
        pass


@given(record_lists(), st.data())
def test_damaged_sections_decode_or_are_invalid(records: list[Record], data: st.DataObject) -> None:
    batch = build_batch(records)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(list(iter_records(batch, read_header(batch)))) == len(records)
    except InvalidRecord:
        pass


@pytest.mark.parametrize("marker", list(MarkerType))
def test_a_marker_ends_a_transaction(marker: MarkerType) -> None:
    batch = build_marker(
        marker,
        producer_id=8,
        producer_epoch=3,
        coordinator_epoch=12,
        timestamp=77,
        base_offset=40,
        leader_epoch=6,
    )
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, -1)
    assert (header.base_offset, header.partition_leader_epoch) == (40, 6)
    assert read_marker(batch, header) == Marker(marker, 12)


def control(*records: Record) -> bytearray:
    return build_batch(records, control=True, last_offset=0)


def test_other_control_records_are_no_markers() -> None:
    batch = control(Record(key=b"\0\0\0\5", value=b"snapshot header"))
    assert read_marker(batch, read_header(batch)) is None


@pytest.mark.parametrize(
    "records",
    [
        [Record(key=None, value=b"\0\0\0\0\0\0")],
        [Record(key=b"\0\0\0\1", value=None)],
        [Record(key=b"\0\0\0", value=b"\0\0\0\0\0\0")],
        [Record(key=b"\0\0\0\1", value=b"\0\0\0")],
    ],
)
def test_a_broken_control_record_is_invalid(records: list[Record]) -> None:
    batch = control(*records)
    with pytest.raises(InvalidRecord):
        read_marker(batch, read_header(batch))


def test_a_control_batch_that_compaction_emptied_has_no_marker() -> None:
    batch = empty_batch(read_header(control(Record(key=b"\0\0\0\1", value=b"\0" * 6))))
    assert read_marker(batch, read_header(batch)) is None


def test_headers_can_be_checked_without_being_returned() -> None:
    headers = (("a", b"1"), ("b", None))
    batch = build_batch([Record(value=b"v", headers=headers)])
    (kept,) = iter_records(batch, read_header(batch))
    (left_out,) = iter_records(batch, read_header(batch), with_headers=False)
    assert kept.headers == headers
    assert left_out == kept._replace(headers=())


@pytest.mark.parametrize("records", [1, 2])
def test_a_batch_of_nothing_but_headers_is_invalid(records: int) -> None:
    count = 1_000_000 // records + 1
    section = b""
    for delta in range(records):
        body = bytes([0, 0, delta * 2, 0, 1]) + _varint(count) + b"\x00\x01" * count
        section += _varint(len(body)) + body
    with pytest.raises(InvalidRecord, match="header count"):
        decode(section, count=records)


def test_the_headers_of_a_hostile_batch_take_no_memory_if_they_are_not_returned() -> None:
    count = 200_000
    body = bytes([0, 0, 0, 0, 1]) + _varint(count) + b"\x00\x01" * count
    header = read_header(build_batch([Record(key=b"")]))
    batch = seal(header, _varint(len(body)) + body)
    tracemalloc.start()
    try:
        assert len(list(iter_records(batch, read_header(batch), with_headers=False))) == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * len(batch)


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@given(record_lists(), codecs)
def test_a_scan_of_keys_finds_what_the_decoder_finds(
    records: list[Record], codec: Compression
) -> None:
    batch = build_batch(records, codec=codec)
    header = read_header(batch)
    section = records_section(batch, header)
    spans = scan_keys(section, header)
    decoded = list(iter_records(batch, header))
    assert [(offset, key, has_value) for _, _, offset, key, has_value in spans] == [
        (record.offset, record.key, record.value is not None) for record in decoded
    ]
    assert b"".join(section[start:end] for start, end, *_ in spans) == section
