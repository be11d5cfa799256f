"""Scans the batches of a log file without loading it into memory.

`scan_headers` trusts nothing: at the first bytes that cannot be a batch it raises CorruptMessage.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from suwi.env import File
from suwi.model.errors import CorruptMessage
from suwi.records.batch import (
    BATCH_LENGTH_MIN,
    CRC_COVERS_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)
from suwi.records.checksum import crc32c

_HEADERS_CHUNK_BYTES = 8192
_BODIES_CHUNK_BYTES = 1 << 18


def scan_headers(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch header from `start` on with its position, reading little more than headers.

    Ends before a batch that reaches beyond `end`. Raises CorruptMessage at bytes that are no batch.
    """
    chunk, chunk_at = b"", start
    position = start
    while position + HEADER_BYTES <= end:
        if position + HEADER_BYTES > chunk_at + len(chunk) or position < chunk_at:
            chunk = file.pread(min(_HEADERS_CHUNK_BYTES, end - position), position)
            chunk_at = position
        header = read_header(chunk, position - chunk_at)
        following = position + header.size_bytes
        if following > end:
            return
        yield position, header
        position = following


def first_header(file: File, start: int, end: int) -> BatchHeader | None:
    """The header of the batch at `start`; None if there is no whole batch up to `end`."""
    try:
        return next((header for _, header in scan_headers(file, start, end)), None)
    except CorruptMessage:
        return None


def header_row(file: File, start: int, end: int, count_max: int) -> list[tuple[int, BatchHeader]]:
    """The next headers from `start` on, as `scan_headers` finds them. Stops before bytes that are
    no batch; the next call then raises CorruptMessage."""
    row: list[tuple[int, BatchHeader]] = []
    try:
        for found in islice(scan_headers(file, start, end), count_max):
            row.append(found)  # noqa: PERF402 - keeps the headers before a bad one
    except CorruptMessage:
        if not row:
            raise
    return row


class Row(NamedTuple):
    """Complete batches in sequence whose checksums are valid."""

    batches: list[tuple[int, BatchHeader]]
    """Each with its position in the file."""
    chunk: memoryview
    chunk_at: int

    def bytes_of(self, position: int, header: BatchHeader) -> memoryview:
        start = position - self.chunk_at
        return self.chunk[start : start + header.size_bytes]


def scan_batches(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Each complete batch from `start` on with its bytes; its CRC is checked.

    Ends before an incomplete batch. Raises CorruptMessage at bytes that are no valid batch.
    """
    for row in scan_rows(file, start, end):
        for position, header in row.batches:
            yield position, header, row.bytes_of(position, header)


def scan_rows(file: File, start: int, end: int) -> Iterator[Row]:
    """As `scan_batches`, many batches at a time: the work per batch dominates a recovery."""
    position = start
    size_wanted = _BODIES_CHUNK_BYTES
    while position + HEADER_BYTES <= end:
        chunk = memoryview(file.pread(min(size_wanted, end - position), position))
        found: list[tuple[int, BatchHeader]] = []
        try:
            used = _check_batches(chunk, position, found)
        except CorruptMessage:
            if found:
                yield Row(found, chunk, position)
            raise
        if found:
            yield Row(found, chunk, position)
            size_wanted = _BODIES_CHUNK_BYTES
        else:
            needed = read_header(chunk).size_bytes
            is_cut = len(chunk) < min(size_wanted, end - position)
            if position + needed > end or is_cut:
                return
            size_wanted = needed
        position += used


def _check_batches(chunk: memoryview, chunk_at: int, found: list[tuple[int, BatchHeader]]) -> int:
    """Add the complete batches of `chunk` to `found`. Returns how many bytes they take.

    Raises CorruptMessage at bytes that are no valid batch; those before it are added.
    """
    unpack, make, crc = HEADER.unpack_from, BatchHeader._make, crc32c
    at, end = 0, len(chunk)
    while at + HEADER_BYTES <= end:
        header = make(unpack(chunk, at))
        if header[3] != MAGIC or header[1] < BATCH_LENGTH_MIN:
            read_header(chunk, at)  # raises the specific error
        following = at + header[1] + LOG_OVERHEAD_BYTES
        if following > end:
            break
        if crc(chunk[at + CRC_COVERS_FROM : following]) != header[4]:
            raise CorruptMessage(f"the checksum of the batch at {chunk_at + at} is wrong")
        found.append((chunk_at + at, header))
        at = following
    return at
