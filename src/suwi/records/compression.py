"""The codecs of a batch's records section.

`compress` writes what Java clients can read, `decompress` reads what any client writes. What does
that is loaded at the first use: most brokers pass batches on as they are, and it takes 2 MB.
Invariant: decompression never makes more than `max_bytes` of output, whatever the input claims.
"""

from enum import IntEnum

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


def decompressed_bytes_max(compressed_bytes: int) -> int:
    """How much output a broker grants to an input of this size: an absolute and a ratio cap.

    Small inputs get a floor, because an honest batch of equal bytes can shrink a thousandfold.
    Producers limit their batches before they compress them, to a mebibyte or so; and looking
    through sixteen of hostile records takes seconds.
    """
    by_ratio = max(_OUTPUT_BYTES_ALWAYS_ALLOWED, compressed_bytes * _OUTPUT_RATIO_MAX)
    return min(_OUTPUT_BYTES_MAX, by_ratio)


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress a records section; `level` is the codec's own scale, default as in Kafka."""
    from suwi.records import codecs

    return codecs.compress(codec, data, level)


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """The plain records section; InvalidRecord if it is broken or grows past `max_bytes`."""
    from suwi.records import codecs

    return codecs.decompress(codec, data, max_bytes)
