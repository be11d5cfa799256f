"""Recompression keeps everything but the codec."""

import pytest
from hypothesis import given

from suwi.model.errors import InvalidRecord
from suwi.records.batch import compute_crc, read_header
from suwi.records.builder import build_batch, recompress
from suwi.records.compression import Compression
from suwi.records.record import Record, iter_records
from tests.records.strategies import codecs, record_lists


@given(record_lists(), codecs, codecs)
def test_a_recompressed_batch_differs_only_in_its_codec(
    records: list[Record], codec: Compression, target: Compression
) -> None:
    batch = build_batch(
        records,
        base_offset=33,
        codec=codec,
        leader_epoch=5,
        producer_id=4,
        producer_epoch=1,
        base_sequence=80,
        transactional=True,
    )
    header = read_header(batch)
    converted = recompress(memoryview(batch), header, target)
    after = read_header(converted)
    assert after.codec is target
    assert after.crc == compute_crc(converted, 0, len(converted))
    assert after.size_bytes == len(converted)
    assert after == header._replace(
        attributes=header.attributes - codec + target,
        batch_length=after.batch_length,
        crc=after.crc,
    )
    assert list(iter_records(converted, after)) == list(iter_records(batch, header))


@given(record_lists(), codecs)
def test_a_batch_that_has_the_codec_already_is_copied(
    records: list[Record], codec: Compression
) -> None:
    batch = build_batch(records, codec=codec)
    converted = recompress(batch + b"what follows", read_header(batch), codec)
    assert converted == batch
    assert converted is not batch


def test_recompression_has_the_output_limit_of_decompression() -> None:
    batch = build_batch([Record(value=bytes(100_000))], codec=Compression.ZSTD)
    with pytest.raises(InvalidRecord):
        recompress(batch, read_header(batch), Compression.LZ4, decompressed_bytes=50_000)
