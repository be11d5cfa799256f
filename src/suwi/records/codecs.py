"""Implements `compression` for each codec; separate because `cramjam` takes time and memory."""

import struct
import zlib
from collections.abc import Callable, Generator
from typing import assert_never

import cramjam

from suwi.model.errors import InvalidRecord
from suwi.records.compression_type import Buffer, Compression

# Apache Kafka's defaults of compression.<codec>.level.
_LEVEL_DEFAULT = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}

# zlib copies the input after a gzip member: small pieces keep many members from quadratic cost.
_GZIP_PIECE_BYTES = 8 * 1024
_ZSTD_PIECE_BYTES = 1024 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
_GROWTH = 4

# The stream header of xerial's snappy-java: magic, version, lowest compatible version.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
# A snappy copy makes at most 64 bytes out of 3.
_SNAPPY_RATIO_MAX = 22


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress a records section; `level` is the codec's own scale, default as in Kafka."""
    if level is None:
        level = _LEVEL_DEFAULT.get(codec, 0)
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return zlib.compress(data, level, wbits=31)
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            # Java clients refuse frames whose blocks depend on each other.
            frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))
        case _:
            assert_never(codec)


def compressing(data: Buffer) -> Generator[None, None, bytes]:
    """With Zstandard, in slices of some milliseconds."""
    frame, view = cramjam.zstd.Compressor(level=_LEVEL_DEFAULT[Compression.ZSTD]), memoryview(data)
    for start in range(0, len(view), _ZSTD_PIECE_BYTES):
        frame.compress(bytes(view[start : start + _ZSTD_PIECE_BYTES]))
        yield
    return bytes(frame.finish())


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """The uncompressed records section. Raises InvalidRecord if damaged or above `max_bytes`."""
    match codec:
        case Compression.NONE:
            if len(data) > max_bytes:
                raise _too_large(max_bytes)
            return bytes(data)
        case Compression.GZIP:
            return _decompress_gzip(data, max_bytes)
        case Compression.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        case Compression.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, max_bytes)
        case Compression.ZSTD:
            return _decompress_growing(cramjam.zstd.decompress_into, data, max_bytes)
        case _:
            assert_never(codec)


def _too_large(max_bytes: int) -> InvalidRecord:
    return InvalidRecord(f"records decompress to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """One gzip member or several in sequence."""
    view = memoryview(data)
    parts: list[bytes] = []
    left = max_bytes
    position = 0
    while position < len(view) or not parts:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = view[position : position + _GZIP_PIECE_BYTES]
            if not piece:
                raise InvalidRecord("gzip: truncated stream")
            try:
                # One byte more than allowed, because a max_length of 0 would mean no limit.
                plain = member.decompress(piece, left + 1)
            except zlib.error as broken:
                raise InvalidRecord(f"gzip: {broken}") from None
            if len(plain) > left:
                raise _too_large(max_bytes)
            left -= len(plain)
            parts.append(plain)
            position += len(piece) - len(member.unused_data)
    return b"".join(parts)


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int
) -> bytes:
    """Decompress into a buffer that grows until it suffices, up to `max_bytes`."""
    capacity = min(max_bytes, max(_FIRST_GUESS_BYTES, len(data) * _GROWTH))
    while True:
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as broken:
            if "failed to write whole buffer" not in str(broken):
                raise InvalidRecord(str(broken)) from None
        else:
            return bytes(memoryview(output)[:size])
        del output
        if capacity == max_bytes:
            raise _too_large(max_bytes)
        capacity = min(max_bytes, capacity * _GROWTH)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    """Java clients use xerial framing, librdkafka writes one raw block."""
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes)
    blocks: list[bytes] = []
    left = max_bytes
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise InvalidRecord("snappy: truncated header")
    while position < len(view):
        start = position + _BLOCK_LENGTH.size
        if start > len(view):
            raise InvalidRecord("snappy: truncated block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position = start + length
        if length < 0 or position > len(view):
            raise InvalidRecord(f"snappy: block of {length} bytes exceeds the section")
        block = _decompress_snappy_block(view[start:position], left)
        left -= len(block)
        blocks.append(block)
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> bytes:
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > max_bytes:
            raise _too_large(max_bytes)
        if claimed > len(block) * _SNAPPY_RATIO_MAX:
            raise InvalidRecord(f"snappy: {len(block)} bytes cannot hold {claimed}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as broken:
        raise InvalidRecord(str(broken)) from None
