"""Walking the batches of a log file without holding it in memory.

`scan_headers` trusts nothing: it stops at the first thing that cannot be a batch and says so.
"""

from collections.abc import Iterator

from crc32c import crc32c

from suwi.env import File
from suwi.model.errors import CorruptMessage
from suwi.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    batches,
    read_header,
)

_HEADERS_CHUNK_BYTES = 8192
_BODIES_CHUNK_BYTES = 1 << 20


def scan_headers(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch header from `start` on with its position, reading headers and little else.

    Ends before a batch that would reach beyond `end`. Raises CorruptMessage at what is no batch.
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


def scan_batches(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Each whole batch from `start` on with its bytes; its CRC is checked.

    Ends where the next batch is incomplete. Raises CorruptMessage at what is no valid batch.
    """
    position = start
    size_wanted = _BODIES_CHUNK_BYTES
    while position + HEADER_BYTES <= end:
        chunk = memoryview(file.pread(min(size_wanted, end - position), position))
        used = 0
        for at, header in batches(chunk):
            used = at + header.batch_length + LOG_OVERHEAD_BYTES
            batch = chunk[at:used]
            if crc32c(batch[CRC_COVERS_FROM:]) != header.crc:
                raise CorruptMessage(f"the checksum of the batch at {position + at} does not fit")
            yield position + at, header, batch
        if used == 0:
            needed = read_header(chunk).size_bytes
            if position + needed > end or len(chunk) < HEADER_BYTES:
                return
            size_wanted = needed
        else:
            size_wanted = _BODIES_CHUNK_BYTES
        position += used
