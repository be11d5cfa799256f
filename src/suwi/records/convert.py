"""Changes the codec of a batch, for a `compression.type` other than `producer`.

Records are not decoded: `validate_produced_records` must have passed before `recompress`.
"""

from suwi.records.batch import CODEC_MASK, BatchHeader
from suwi.records.builder import seal
from suwi.records.compression import Buffer, Compression, compress
from suwi.records.record import records_section


def recompress(
    batch: Buffer,
    header: BatchHeader,
    codec: Compression,
    *,
    compression_level: int | None = None,
    decompressed_bytes: int | None = None,
) -> bytearray:
    """The same batch with its records compressed by `codec`; offsets, times, producer are kept.

    A batch that already has this codec is copied unchanged.
    """
    if header.codec is codec:
        return bytearray(memoryview(batch)[: header.size_bytes])
    section = records_section(batch, header, decompressed_bytes=decompressed_bytes)
    attributes = header.attributes & ~CODEC_MASK | codec
    return seal(header._replace(attributes=attributes), compress(codec, section, compression_level))
