"""Batches of records into Arrow columns, in the row schema of Spark's Kafka connector.

`Decoder.decode` takes the visible batches of a fetch and gives record batches of about 10,000 rows.
Invariant: every record from `start` up to `end` comes once, in order.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from suwi.model.ids import Offset, TopicPartition
from suwi.records.batch import BatchHeader
from suwi.records.record import iter_records

ROWS_MAX: Final = 10_000
_DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Of one batch; what a producer sent and a broker took is believed."""
_BYTES_MAX: Final = 16 * 1024 * 1024

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
)
_HEADERS: Final = ("headers", pa.list_(pa.field("element", _HEADER)))


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    return pa.schema([*_FIELDS, _HEADERS] if include_headers else _FIELDS)


class Decoder:
    def __init__(self, partition: TopicPartition, *, include_headers: bool) -> None:
        self._partition = partition
        self._include_headers = include_headers
        self._schema = arrow_schema(include_headers=include_headers)

    def decode(
        self,
        batches: Iterable[tuple[BatchHeader, memoryview]],
        start: Offset,
        end: Offset,
    ) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        for header, batch in batches:
            kind = int(header.uses_log_append_time)
            for record in iter_records(
                batch,
                header,
                decompressed_bytes=_DECOMPRESSED_BYTES_MAX,
                with_headers=self._include_headers,
            ):
                if start <= record.offset < end:
                    rows.append((record, kind))
                if len(rows) == ROWS_MAX:
                    yield self._batch(rows)
                    rows = []
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns: list[Any] = [
            pa.array([record.key for record, _ in rows], pa.binary()),
            pa.array([record.value for record, _ in rows], pa.binary()),
            pa.array([self._partition.topic] * len(rows), pa.string()),
            pa.array([self._partition.partition] * len(rows), pa.int32()),
            pa.array([record.offset for record, _ in rows], pa.int64()),
            pa.array([record.timestamp * 1000 for record, _ in rows], pa.int64()).cast(
                pa.timestamp("us", "UTC")
            ),
            pa.array([kind for _, kind in rows], pa.int32()),
        ]
        if self._include_headers:
            headers = [
                [{"key": key, "value": value} for key, value in record.headers] or None
                for record, _ in rows
            ]
            columns.append(pa.array(headers, _HEADERS[1]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
