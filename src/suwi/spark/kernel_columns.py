"""Records to columns by the kernel: room for its output, and Arrow arrays of what it wrote.

Nothing is copied from there on: the arrays are views of the memory that the kernel filled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from suwi.model.ids import Offset, TopicPartition
from suwi.spark.kernel import Kernel
from suwi.spark.row_schema import HEADER, HEADERS, TIMESTAMP, BadTimestamp, Columns

if TYPE_CHECKING:
    from suwi.spark.columns import Section

_OK, _BROKEN, _BAD_TIMESTAMP = 0, 1, 2
_NO_APPEND_TIME = -(2**63)
_RECORD_BYTES_MIN = 7


class BrokenRecords(Exception):
    """The kernel found no records, or not as many as a header says."""


def decode_with(
    kernel: Kernel,
    partition: TopicPartition,
    data: memoryview,
    sections: Sequence["Section"],
    start: Offset,
    end: Offset,
    include_headers: bool,
) -> Columns:
    """Raises `BrokenRecords`, `BadTimestamp`."""
    lengths = sum(section.end - section.start for section in sections)
    room = sum(section.header.record_count for section in sections)
    # Memory grows with bytes that are there, never with a count that is claimed.
    if not 0 <= room <= lengths // _RECORD_BYTES_MIN:
        raise BrokenRecords
    offsets, times, headers_at = (np.empty(room, np.int64) for _ in range(3))
    kinds, header_counts = np.empty(room, np.int32), np.empty(room, np.int32)
    keys, values = _Bytes(room, lengths), _Bytes(room, lengths)
    whole = np.frombuffer(data, np.uint8)
    status, rows, keys.missing, values.missing, headers = kernel.decode_records(
        whole,
        np.array([section.start for section in sections], np.int64),
        np.array([section.end for section in sections], np.int64),
        np.array([section.header.record_count for section in sections], np.int64),
        np.array([section.header.base_offset for section in sections], np.int64),
        np.array([section.header.base_timestamp for section in sections], np.int64),
        np.array([_append_time(section) for section in sections], np.int64),
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
    if status == _BAD_TIMESTAMP:
        raise BadTimestamp(partition, keys.missing, values.missing)
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


def _append_time(section: "Section") -> int:
    header = section.header
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
