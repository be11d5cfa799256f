"""The compression codecs of a batch's records section.

`compress` writes what Java clients can read, `decompress` reads what any client writes. The
implementation is loaded on first use: most brokers never recompress batches, and it takes 2 MB.
Invariant: decompression never produces more than `max_bytes`, whatever the input claims.
"""

from collections.abc import Generator

from suwi.records.compression_type import Buffer as Buffer
from suwi.records.compression_type import Compression as Compression

_OUTPUT_BYTES_MAX = 256 * 1024 * 1024
_OUTPUT_BYTES_ALWAYS_ALLOWED = 16 * 1024 * 1024
_OUTPUT_RATIO_MAX = 16


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
    from suwi.records import codecs

    return codecs.compress(codec, data, level)


def compressing(data: Buffer) -> Generator[None, None, bytes]:
    """With Zstandard, in slices."""
    from suwi.records import codecs

    return codecs.compressing(data)


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> bytes:
    """The uncompressed records section. Raises InvalidRecord if damaged or above `max_bytes`."""
    from suwi.records import codecs

    return codecs.decompress(codec, data, max_bytes)
