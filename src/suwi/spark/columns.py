"""Batches of records into Arrow columns, in the row schema of Spark's Kafka connector.

`Decoder.decode` takes the visible batches of a fetch and gives record batches of at most 10,000
rows. Many records are decoded by the compiled kernel, a few, or all where there is none, one by
one (`plain_columns`).
Invariant: every record from `start` up to `end` comes once, in order.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from suwi.model.ids import Offset, TopicPartition
from suwi.records.batch import HEADER_BYTES, BatchHeader
from suwi.records.compression import Compression, decompress
from suwi.spark.kernel import load_kernel
from suwi.spark.kernel_columns import BrokenRecords, decode_with
from suwi.spark.plain_columns import decode_one_by_one
from suwi.spark.row_schema import Columns, arrow_schema

ROWS_MAX: Final = 10_000
# Below this a process is done before numba is loaded.
_KERNEL_FROM_ROWS: Final = 20_000
_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Of plain records that are decoded together, unless one batch alone has more."""
_DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Of one batch. A broker took it, so it is believed up to here."""

_decoded_rows = 0
"""In this process, whichever task."""


class Section(NamedTuple):
    """The plain records of one batch: a part of the group's data."""

    header: BatchHeader
    start: int
    end: int


class Decoder:
    def __init__(self, partition: TopicPartition, *, include_headers: bool) -> None:
        self._partition = partition
        self._include_headers = include_headers
        self._schema = arrow_schema(include_headers=include_headers)
        self._topics = pa.array([partition.topic], pa.string())
        self._partitions = pa.array([partition.partition], pa.int32())

    def decode(
        self,
        data: memoryview,
        batches: Iterable[tuple[int, BatchHeader]],
        start: Offset,
        end: Offset,
    ) -> Iterator[pa.RecordBatch]:
        """Raises `InvalidRecord`, `BadTimestamp`."""
        for group, sections in _groups(data, batches):
            columns = self._columns(group, sections, start, end)
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
            try:
                return decode_with(
                    kernel, self._partition, data, sections, start, end, self._include_headers
                )
            except BrokenRecords:
                pass  # Said better below.
        return decode_one_by_one(self._partition, data, sections, start, end, self._include_headers)

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
    data: memoryview, batches: Iterable[tuple[int, BatchHeader]]
) -> Iterator[tuple[memoryview, list[Section]]]:
    """Sections to be decoded together, each group with the bytes its sections are parts of.

    What is not compressed stays where it is. What is becomes plain a group at a time: a few bytes
    may hold gigabytes.
    """
    plain: list[Section] = []
    parts: list[bytes] = []
    unpacked: list[Section] = []
    size = 0
    for at, header in batches:
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
