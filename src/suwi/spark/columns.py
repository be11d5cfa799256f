"""Batches of records into Arrow columns, in the row schema of Spark's Kafka connector.

`Decoder.open` looks at the batches of a fetch, which then decode themselves into record batches of
at most 10,000 rows. Many records are decoded by the compiled kernel, a few, or all where there is
none, one by one (`plain_columns`).
Invariant: every record from `start` up to `end` comes once, in order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from suwi.client.isolation_filter import visible_batches
from suwi.model.ids import Offset, TopicPartition
from suwi.records.batch import HEADER_BYTES, BatchHeader, batches
from suwi.records.compression import Compression, decompress
from suwi.records.record import Headers, Record, read_records
from suwi.spark.kernel import BrokenRecords, Kernel, load_kernel
from suwi.spark.row_schema import (
    CREATE_TIME,
    HEADERS,
    LOG_APPEND_TIME,
    MICROSECONDS_MS_MAX,
    TIMESTAMP,
    Columns,
    Section,
    arrow_schema,
)
from suwi.wire.fetch_response import AbortedTransaction

if TYPE_CHECKING:
    # It needs numpy, which comes with numba: loaded where there is a kernel.
    from suwi.spark.kernel_columns import Sections

ROWS_MAX: Final = 10_000
# Fewer records are decoded faster than numba is loaded.
_KERNEL_FROM_ROWS: Final = 20_000
_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Of plain records that are decoded together, unless one batch alone has more."""
_DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Of one batch. A broker took it, so it is believed up to here."""

_decoded_rows = 0
"""Counted over all tasks of this process."""


class Opened(NamedTuple):
    """The batches of a fetch."""

    end: Offset | None
    """After the last of them; None: there is none."""
    decode: Callable[[Offset, Offset], Iterator[pa.RecordBatch]]
    """Rows that a reader sees, from one offset up to another. Raises `InvalidRecord`."""

    def position_after(self, position: Offset) -> Offset:
        """Where to read on after them."""
        return position if self.end is None else max(position, self.end)


class Decoder:
    def __init__(self, partition: TopicPartition, *, include_headers: bool) -> None:
        self._include_headers = include_headers
        self._schema = arrow_schema(include_headers=include_headers)
        self._topics = pa.array([partition.topic], pa.string())
        self._partitions = pa.array([partition.partition], pa.int32())

    def open(
        self,
        data: memoryview,
        aborted: Sequence[AbortedTransaction] | None = None,
        *,
        check_crcs: bool = True,
    ) -> "Opened":
        """Look at the batches of a fetch. Raises `CorruptMessage`."""
        kernel = load_kernel() if _decoded_rows >= _KERNEL_FROM_ROWS else None
        if kernel is not None:
            from suwi.spark.kernel_columns import scan

            scanned = scan(kernel, data, check_crcs=check_crcs)
            if scanned is not None:
                at_once = partial(self._decode_at_once, kernel, data, scanned.sections)
                return Opened(scanned.position, at_once)
        # Any batches: compressed, transactional, broken.
        whole = list(batches(data))

        def one_by_one(start: Offset, end: Offset) -> Iterator[pa.RecordBatch]:
            visible = visible_batches(data, whole, aborted, check_crcs=check_crcs)
            return self._decode(data, visible, start, end)

        return Opened(Offset(whole[-1][1].next_offset) if whole else None, one_by_one)

    def _decode(
        self,
        data: memoryview,
        visible: Iterable[tuple[int, BatchHeader]],
        start: Offset,
        end: Offset,
    ) -> Iterator[pa.RecordBatch]:
        for group, sections in _groups(data, visible):
            yield from self._record_batches(self._columns(group, sections, start, end))

    def _decode_at_once(
        self, kernel: Kernel, data: memoryview, sections: "Sections", start: Offset, end: Offset
    ) -> Iterator[pa.RecordBatch]:
        """Plain batches without transactions, in one go of the kernel."""
        from suwi.spark.kernel_columns import decode_with

        try:
            columns = decode_with(kernel, data, sections, start, end, self._include_headers)
        except BrokenRecords:  # Said better, or made good, by those who look closely.
            yield from self._decode(data, batches(data), start, end)
        else:
            yield from self._record_batches(columns)

    def _record_batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        rows = len(columns.offset)
        for row in range(0, rows, ROWS_MAX):
            yield self._record_batch(columns, row, min(ROWS_MAX, rows - row))

    def _columns(
        self, data: memoryview, sections: list[Section], start: Offset, end: Offset
    ) -> Columns:
        global _decoded_rows
        _decoded_rows += sum(section.header.record_count for section in sections)
        kernel = load_kernel() if _decoded_rows >= _KERNEL_FROM_ROWS else None
        if kernel is not None:
            from suwi.spark.kernel_columns import Sections, decode_with

            given = Sections.of(sections)
            try:
                return decode_with(kernel, data, given, start, end, self._include_headers)
            except BrokenRecords:
                pass  # Said better below.
        return decode_one_by_one(data, sections, start, end, self._include_headers)

    def _record_batch(self, columns: Columns, row: int, rows: int) -> pa.RecordBatch:
        if len(self._topics) < rows:
            self._topics = pa.repeat(self._topics[0], ROWS_MAX)
            self._partitions = pa.repeat(self._partitions[0], ROWS_MAX)
        arrays = [
            columns.key.slice(row, rows),
            columns.value.slice(row, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            columns.offset.slice(row, rows),
            columns.timestamp.slice(row, rows),
            columns.timestamp_type.slice(row, rows),
        ]
        if columns.headers is not None:
            arrays.append(columns.headers.slice(row, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _groups(
    data: memoryview, visible: Iterable[tuple[int, BatchHeader]]
) -> Iterator[tuple[memoryview, list[Section]]]:
    """Sections to be decoded together, each group with the bytes its sections are parts of.

    What is not compressed stays where it is. What is becomes plain a group at a time: a few bytes
    may hold gigabytes.
    """
    plain: list[Section] = []
    parts: list[bytes] = []
    unpacked: list[Section] = []
    size = 0
    for at, header in visible:
        if header.record_count == 0:
            continue  # Compaction left the batch for its producer's sake.
        first, last = at + HEADER_BYTES, at + header.size_bytes
        if header.codec is Compression.NONE:
            if unpacked:  # A producer changed its mind; offsets stay in order.
                yield memoryview(b"".join(parts)), unpacked
                parts, unpacked, size = [], [], 0
            plain.append(Section(header, first, last))
            continue
        if plain:
            yield data, plain
            plain = []
        part = decompress(header.codec, data[first:last], _DECOMPRESSED_BYTES_MAX)
        parts.append(part)
        unpacked.append(Section(header, size, size + len(part)))
        size += len(part)
        if size >= _GROUP_BYTES:
            yield memoryview(b"".join(parts)), unpacked
            parts, unpacked, size = [], [], 0
    if plain:
        yield data, plain
    if unpacked:
        yield memoryview(b"".join(parts)), unpacked


def decode_one_by_one(
    data: memoryview,
    sections: Iterable["Section"],
    start: Offset,
    end: Offset,
    include_headers: bool,
) -> Columns:
    """Raises `InvalidRecord`."""
    records: list[Record] = []
    kinds: list[int] = []
    for section in sections:
        kind = LOG_APPEND_TIME if section.header.uses_log_append_time else CREATE_TIME
        plain = bytes(data[section.start : section.end])
        for record in read_records(plain, section.header, with_headers=include_headers):
            if start <= record.offset < end:
                records.append(record)
                kinds.append(kind)
    times_us = pa.array([_micros(record.timestamp) for record in records], pa.int64())
    return Columns(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.offset for record in records], pa.int64()),
        times_us.cast(TIMESTAMP),
        pa.array(kinds, pa.int32()),
        pa.array([_headers(record.headers) for record in records], HEADERS)
        if include_headers
        else None,
    )


def _micros(time_ms: int) -> int:
    """A time beyond the range of microseconds becomes the nearest one, so that no task fails."""
    return max(-MICROSECONDS_MS_MAX, min(time_ms, MICROSECONDS_MS_MAX)) * 1000


def _headers(headers: Headers) -> list[dict[str, str | bytes | None]] | None:
    """The connector has null for a record without headers."""
    return [{"key": _as_text(key), "value": value} for key, value in headers] or None


def _as_text(key: str) -> str:
    """A key may be any bytes; like Java, invalid UTF-8 becomes U+FFFD."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
