"""The codec of a batch's records section, as its attributes name it."""

from enum import IntEnum

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
