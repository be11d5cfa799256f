"""Records to columns by the kernel: room for its output, and Arrow arrays of what it wrote.

`scan` finds the batches of a fetch, `decode_with` decodes sections of records. Nothing is copied
after that: the arrays are views of the memory that the kernel filled.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, compute_crc, read_header
from suwi.spark.kernel import BrokenRecords, Kernel
from suwi.spark.row_schema import HEADER, HEADERS, TIMESTAMP, Columns, Section

_OK = 0
_NO_APPEND_TIME = -(2**63)
_RECORD_BYTES_MIN = 7
_HEADER_BYTES = 61
# Up to here the kernel's own checksum is faster than calling the library's, batch by batch.
_SLOW_CRC_BYTES_MAX = 1024


class Sections(NamedTuple):
    """Uncompressed records of batches in one buffer, with one array per property."""

    starts: Any
    ends: Any
    counts: Any
    base_offsets: Any
    base_timestamps: Any
    append_times: Any

    @classmethod
    def of(cls, sections: Sequence[Section]) -> "Sections":
        headers = [section.header for section in sections]
        return cls(
            np.array([section.start for section in sections], np.int64),
            np.array([section.end for section in sections], np.int64),
            np.array([header.record_count for header in headers], np.int64),
            np.array([header.base_offset for header in headers], np.int64),
            np.array([header.base_timestamp for header in headers], np.int64),
            np.array([_append_time(header) for header in headers], np.int64),
        )

    def part(self, start: int, end: int) -> "Sections":
        return Sections(*(array[start:end] for array in self))


class Scanned(NamedTuple):
    sections: Sections
    position: Offset
    """After the last batch."""


def scan(kernel: Kernel, data: memoryview, *, check_crcs: bool) -> Scanned | None:
    """The batches of a fetch, if all are plain, without transactions, and in order; else None."""
    room = len(data) // _HEADER_BYTES
    sections = Sections(*(np.empty(room, np.int64) for _ in Sections._fields))
    crc_bytes_max = _SLOW_CRC_BYTES_MAX if check_crcs else -1
    status, found, position, unchecked = kernel.scan_batches(
        np.frombuffer(data, np.uint8), _crc_table(), crc_bytes_max, *sections
    )
    if status != _OK or not found:
        return None
    sections = sections.part(0, found)
    if check_crcs and unchecked:
        for start, end in zip(sections.starts.tolist(), sections.ends.tolist(), strict=True):
            at, size = start - _HEADER_BYTES, end - start + _HEADER_BYTES
            if size > crc_bytes_max and compute_crc(data, at, size) != read_header(data, at).crc:
                return None
    return Scanned(sections, Offset(position))


@cache
def _crc_table() -> Any:
    """CRC-32C, a byte at a time (the reflected polynomial)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (table & 1).astype(bool)
        table = np.where(odd, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


def decode_with(
    kernel: Kernel,
    data: memoryview,
    sections: Sections,
    start: Offset,
    end: Offset,
    include_headers: bool,
) -> Columns:
    """Raises `BrokenRecords`."""
    lengths = int((sections.ends - sections.starts).sum())
    room = int(sections.counts.sum())
    # Memory is allocated by the number of bytes present, never by a count in a header.
    if sections.counts.min(initial=0) < 0 or room > lengths // _RECORD_BYTES_MIN:
        raise BrokenRecords
    offsets, times, headers_at = (np.empty(room, np.int64) for _ in range(3))
    kinds, header_counts = np.empty(room, np.int32), np.empty(room, np.int32)
    keys, values = _Bytes(room, lengths), _Bytes(room, lengths)
    whole = np.frombuffer(data, np.uint8)
    status, rows, keys.missing, values.missing, headers = kernel.decode_records(
        whole,
        *sections,
        start,
        end,
        offsets,
        times,
        kinds,
        *keys.parts,
        *values.parts,
        headers_at,
        header_counts,
    )
    if status != _OK:
        raise BrokenRecords
    return Columns(
        keys.array(pa.binary(), rows),
        values.array(pa.binary(), rows),
        _fixed(pa.int64(), offsets, rows),
        _fixed(TIMESTAMP, times, rows),
        _fixed(pa.int32(), kinds, rows),
        _headers(kernel, whole, headers_at, header_counts[:rows], headers)
        if include_headers
        else None,
    )


def _append_time(header: BatchHeader) -> int:
    return header.max_timestamp if header.uses_log_append_time else _NO_APPEND_TIME


class _Bytes:
    """A column of byte strings, some of which may be missing."""

    def __init__(self, room: int, bytes_max: int) -> None:
        self._ends = np.empty(room + 1, np.int32)
        self._bytes = np.empty(bytes_max, np.uint8)
        self._is_there = np.empty(room, np.uint8)
        self.missing = 0

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        return self._ends, self._bytes, self._is_there

    def array(self, kind: pa.DataType, rows: int) -> pa.Array:
        size = int(self._ends[rows])
        return pa.Array.from_buffers(
            kind,
            rows,
            [
                _bitmap(self._is_there[:rows]) if self.missing else None,
                pa.py_buffer(self._ends[: rows + 1]),
                pa.py_buffer(self._bytes[:size]),
            ],
            self.missing,
        )


def _fixed(kind: pa.DataType, numbers: Any, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers[:rows])], 0)


def _bitmap(flags: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _headers(kernel: Kernel, data: Any, headers_at: Any, counts: Any, headers: int) -> pa.Array:
    keys, values = _Bytes(headers, len(data)), _Bytes(headers, len(data))
    key_ends, key_bytes, _ = keys.parts
    status, found, values.missing = kernel.decode_headers(
        data, headers_at, counts, len(counts), key_ends, key_bytes, *values.parts
    )
    if status != _OK or found != headers:
        raise BrokenRecords
    names = keys.array(pa.string(), headers)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raise BrokenRecords from None  # Not UTF-8: one by one they are made so.
    pairs = pa.StructArray.from_arrays(
        [names, values.array(pa.binary(), headers)], fields=list(HEADER)
    )
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    has_some = counts > 0
    missing = int(len(counts) - has_some.sum())
    return pa.Array.from_buffers(
        HEADERS,
        len(counts),
        [_bitmap(has_some) if missing else None, pa.py_buffer(ends)],
        missing,
        children=[pairs],
    )
