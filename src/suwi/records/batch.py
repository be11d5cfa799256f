"""The header of a record batch, and the fields of it that a broker may change.

`read_header` reads one, `batches` iterates over a buffer; `place` and `stamp` patch in place.
Invariant: the records section is neither read nor copied here.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from suwi.model.errors import CorruptMessage, UnsupportedCompressionType
from suwi.records.checksum import crc32c
from suwi.records.compression import Buffer, Compression

HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12  # base offset and length: what `batch_length` does not count
MAGIC: Final = 2
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_COVERS_FROM: Final = 21
SEQUENCE_MAX: Final = 0x7FFF_FFFF

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")

_LENGTH_AT = 8
_EPOCH_AT = 12
_ATTRIBUTES_AT = 21
FLAGS_AT: Final = _ATTRIBUTES_AT + 1
"""The byte of the attributes that has all bits which are defined."""
_MAX_TIMESTAMP_AT = 35
BATCH_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES

_CODECS = tuple(Compression)
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, field by field as on disk."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Compression:
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise UnsupportedCompressionType(f"unknown compression type {number}")
        return _CODECS[number]

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def uses_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """KIP-534: the base timestamp is when tombstones and markers may be removed."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 2^31 - 1 is followed by 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`. Raises CorruptMessage if it cannot be a batch header.

    The batch may extend beyond the buffer.
    """
    try:
        # As `_make`, inlined because it runs for every incoming batch.
        header = _new_tuple(BatchHeader, HEADER.unpack_from(buffer, position))
    except struct.error:
        raise CorruptMessage(
            f"{len(buffer) - position} bytes cannot hold a batch header of {HEADER_BYTES}"
        ) from None
    if header.magic != MAGIC:
        raise CorruptMessage(f"record format {header.magic} is not supported, only {MAGIC} is")
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptMessage(f"batch length {header.batch_length} is less than a header's")
    return header


def batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Every complete batch in the buffer with its position; an incomplete one at the end is
    skipped.

    Raises CorruptMessage if a header is damaged.
    """
    position = 0
    end = len(buffer)
    while position + HEADER_BYTES <= end:
        header = read_header(buffer, position)
        following = position + header.size_bytes
        if following > end:
            return
        yield position, header
        position = following


def end_of_batches(buffer: memoryview, count: int) -> int:
    """The end of the first `count` batches in the buffer; the buffer's end if there are fewer."""
    position, end = 0, len(buffer)
    for _ in range(count):
        if position + HEADER_BYTES > end:
            return end
        (batch_length,) = _INT32.unpack_from(buffer, position + _LENGTH_AT)
        if batch_length < BATCH_LENGTH_MIN:
            return end  # Not a batch: the reader raises the error.
        position += LOG_OVERHEAD_BYTES + batch_length
    return min(position, end)


def compute_crc(buffer: Buffer, position: int, size_bytes: int) -> int:
    """The CRC-32C of the batch of `size_bytes` at `position`, from the attributes to its end."""
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    return crc32c(view[position + CRC_COVERS_FROM : position + size_bytes])


def place(batch: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch. Both fields are outside the CRC."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, _EPOCH_AT, leader_epoch)


def stamp(batch: memoryview | bytearray, max_timestamp: int) -> None:
    """LogAppendTime: set one timestamp for every record of the batch. Updates the CRC."""
    (batch_length,) = _INT32.unpack_from(batch, _LENGTH_AT)
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    _TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(batch, CRC_AT, compute_crc(batch, 0, batch_length + LOG_OVERHEAD_BYTES))
