"""The compression codecs of a batch's records section.

`compress` writes what Java clients can read, `decompress` reads what any client writes. `cramjam`
is loaded on first use: most brokers never recompress batches, and it takes 2 MB.
Invariant: decompression never produces more than `max_bytes`, whatever the input claims.
"""

import struct
import zlib
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import assert_never

from suwi.model.errors import InvalidRecord

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_OUTPUT_BYTES_MAX = 256 * 1024 * 1024
_OUTPUT_BYTES_ALWAYS_ALLOWED = 16 * 1024 * 1024
_OUTPUT_RATIO_MAX = 16

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


def decompressed_bytes_max(compressed_bytes: int) -> int:
    """The decompressed size that a broker allows for an input: limited absolutely and by ratio.

    Small inputs get a minimum, because a valid batch of equal bytes can shrink a thousandfold.
    Producers limit their batches before compression, to about one mebibyte; and scanning 16 MiB of
    hostile records takes seconds.
    """
    by_ratio = max(_OUTPUT_BYTES_ALWAYS_ALLOWED, compressed_bytes * _OUTPUT_RATIO_MAX)
    return min(_OUTPUT_BYTES_MAX, by_ratio)


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress a records section; `level` is the codec's own scale, default as in Kafka."""
    import cramjam

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
    import cramjam

    frame, view = cramjam.zstd.Compressor(level=_LEVEL_DEFAULT[Compression.ZSTD]), memoryview(data)
    for start in range(0, len(view), _ZSTD_PIECE_BYTES):
        frame.compress(bytes(view[start : start + _ZSTD_PIECE_BYTES]))
        yield
    return bytes(frame.finish())


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """The uncompressed records section. Raises InvalidRecord if damaged or above `max_bytes`."""
    import cramjam

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
    import cramjam

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
    import cramjam

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
    import cramjam

    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > max_bytes:
            raise _too_large(max_bytes)
        if claimed > len(block) * _SNAPPY_RATIO_MAX:
            raise InvalidRecord(f"snappy: {len(block)} bytes cannot hold {claimed}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as broken:
        raise InvalidRecord(str(broken)) from None
