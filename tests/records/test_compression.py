"""The codecs: both directions, both snappy framings, and hostile inputs."""

import os
import struct
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.model.errors import InvalidRecord
from suwi.records.compression import (
    Compression,
    compress,
    compressing,
    decompress,
    decompressed_bytes_max,
)
from tests.records.strategies import codecs

COMPRESSING = [codec for codec in Compression if codec is not Compression.NONE]
MEGABYTE = 1024 * 1024
XERIAL_HEADER = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


@given(codecs, st.binary(max_size=5000), st.integers(1, 60))
def test_compressed_data_decompresses_to_the_original(
    codec: Compression, data: bytes, times: int
) -> None:
    plain = data * times
    assert decompress(codec, compress(codec, plain), len(plain)) == plain


@pytest.mark.parametrize("codec", list(Compression))
def test_any_kind_of_buffer_is_accepted(codec: Compression) -> None:
    plain = b"some records " * 20
    packed = compress(codec, plain)
    for kind in (bytes, bytearray, memoryview):
        assert compress(codec, kind(plain)) == packed
        assert decompress(codec, kind(packed), 1000) == plain
    view = memoryview(bytearray(b"<" + packed + b">"))[1:-1]
    assert decompress(codec, view, 1000) == plain


@pytest.mark.parametrize("codec", list(Compression))
def test_the_output_limit_is_exact(codec: Compression) -> None:
    plain = os.urandom(1000) + bytes(2 * MEGABYTE)
    packed = compress(codec, plain)
    assert decompress(codec, packed, len(plain)) == plain
    for cap in (0, 1, 999, 100_000, len(plain) - 1):
        with pytest.raises(InvalidRecord):
            decompress(codec, packed, cap)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_stream_that_is_cut_off_is_invalid(codec: Compression) -> None:
    packed = compress(codec, b"0123456789" * 10_000)
    for size in {0, 1, 3, 7, 15, 17, len(packed) // 2, len(packed) - 1}:
        with pytest.raises(InvalidRecord):
            decompress(codec, packed[:size], MEGABYTE)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_after_the_stream_are_invalid(codec: Compression) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, b"0123456789" * 10) + b"tail", MEGABYTE)


@given(codecs, st.binary(max_size=400))
def test_arbitrary_bytes_decompress_or_are_invalid(codec: Compression, junk: bytes) -> None:
    try:
        assert len(decompress(codec, junk, 10_000)) <= 10_000
    except InvalidRecord:
        pass


@given(st.sampled_from(COMPRESSING), st.data())
def test_damaged_streams_decompress_or_are_invalid(codec: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"0123456789" * 300 + bytes(range(256))))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(codec, packed, 10_000)) <= 10_000
    except InvalidRecord:
        pass


def test_snappy_is_written_with_java_framing_in_blocks_of_32_kib() -> None:
    plain = os.urandom(70_000)
    packed = compress(Compression.SNAPPY, plain)
    assert packed.startswith(XERIAL_HEADER)
    position, blocks = len(XERIAL_HEADER), []
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        position += 4 + length
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position - length : position])))
    assert [len(block) for block in blocks] == [32768, 32768, 70_000 - 65536]
    assert b"".join(blocks) == plain


def test_snappy_is_read_as_a_raw_block_too() -> None:
    plain = b"0123456789" * 5000
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(plain)), MEGABYTE) == (
        plain
    )


@pytest.mark.parametrize(
    "blocks",
    [
        b"\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\2a",
        b"\0\0\0\0",
        # a block that claims 4 GiB, one that claims 9 MiB, and a length without an end
        b"\0\0\0\5\xff\xff\xff\xff\x0f",
        b"\0\0\0\6\x80\x80\xc0\x04\0a",
        b"\0\0\0\2\xff\xff",
    ],
)
def test_malformed_snappy_frames_are_invalid(blocks: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decompress(Compression.SNAPPY, XERIAL_HEADER + blocks, 16 * MEGABYTE)


def test_lz4_frames_have_independent_blocks_because_java_reads_no_others() -> None:
    packed = compress(Compression.LZ4, os.urandom(200_000))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    version, block_independence = packed[4] >> 6, packed[4] >> 5 & 1
    assert (version, block_independence) == (1, 1)


def test_lz4_frames_with_linked_blocks_and_checksums_are_read() -> None:
    plain = b"0123456789" * 20_000
    frame = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=True)
    frame.compress(plain)
    assert decompress(Compression.LZ4, bytes(frame.finish()), MEGABYTE) == plain


def test_gzip_in_several_members_is_read() -> None:
    packed = zlib.compress(b"one ", wbits=31) + zlib.compress(b"two", wbits=31)
    assert decompress(Compression.GZIP, packed, 7) == b"one two"
    with pytest.raises(InvalidRecord):
        decompress(Compression.GZIP, packed, 6)


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [(Compression.GZIP, 1, 9), (Compression.LZ4, 1, 12), (Compression.ZSTD, 1, 19)],
)
def test_levels_are_passed_on(codec: Compression, fast: int, small: int) -> None:
    plain = b"".join(b"%d;" % (n * n % 9973) for n in range(30_000))
    loose, tight = compress(codec, plain, fast), compress(codec, plain, small)
    assert len(tight) < len(loose)
    assert decompress(codec, loose, MEGABYTE) == decompress(codec, tight, MEGABYTE) == plain


def test_the_output_limit_grows_with_the_input_between_a_minimum_and_a_maximum() -> None:
    assert decompressed_bytes_max(0) == 16 * MEGABYTE
    assert decompressed_bytes_max(2 * MEGABYTE) == 32 * MEGABYTE
    assert decompressed_bytes_max(1000 * MEGABYTE) == 256 * MEGABYTE


MEMORY_PEAK_FILE = "/proc/self/status"
EXPLODE = """
import sys
from suwi.model.errors import InvalidRecord
from suwi.records.compression import Compression, decompress

def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

codec, packed = Compression[sys.argv[1]], sys.stdin.buffer.read()
before = peak_kib()
try:
    decompress(codec, packed, int(sys.argv[2]))
except InvalidRecord:
    print("refused", peak_kib() - before)
else:
    print("accepted", peak_kib() - before)
"""


@pytest.mark.skipif(not os.path.exists(MEMORY_PEAK_FILE), reason="needs Linux's /proc")
@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_decompression_bomb_takes_no_more_memory_than_the_limit(codec: Compression) -> None:
    packed = compress(codec, bytes(100 * MEGABYTE), level=1)

    def explode(cap: int) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-c", EXPLODE, codec.name, str(cap)],
            input=packed,
            capture_output=True,
            check=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        outcome, kib = done.stdout.split()
        return outcome.decode(), int(kib) * 1024

    outcome, grown_bytes = explode(8 * MEGABYTE)
    assert outcome == "refused"
    # The limit, the smaller buffer before it, and some memory for the codec itself.
    assert grown_bytes < 24 * MEGABYTE
    # The measurement itself works: without a limit the memory use shows.
    outcome, grown_bytes = explode(200 * MEGABYTE)
    assert outcome == "accepted"
    assert grown_bytes > 100 * MEGABYTE


def test_gzip_in_very_many_members_is_read_in_linear_time() -> None:
    empty = zlib.compress(b"", wbits=31)
    # If the remaining input were copied for each member, this would move 50 gigabytes.
    packed = empty * (MEGABYTE // len(empty)) + zlib.compress(b"end", wbits=31)
    assert decompress(Compression.GZIP, packed, 3) == b"end"


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (3 << 20) + 5])
def test_what_is_compressed_in_slices_is_one_frame_with_the_same_content(size: int) -> None:
    data = os.urandom(1_000) * (size // 1_000 + 1)
    slices, compressing_ = 0, compressing(data[:size])
    while True:
        try:
            next(compressing_)
        except StopIteration as done:
            compressed = done.value
            break
        slices += 1
    assert slices == -(-size // (1 << 20))
    assert decompress(Compression.ZSTD, compressed, size + 1) == data[:size]
