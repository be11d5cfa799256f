"""Records to columns one by one: for a few of them, and where the kernel cannot be had."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from suwi.model.ids import Offset, TopicPartition
from suwi.records.record import Headers, Record, read_records
from suwi.spark.row_schema import (
    CREATE_TIME,
    HEADERS,
    LOG_APPEND_TIME,
    MICROSECONDS_MS_MAX,
    TIMESTAMP,
    BadTimestamp,
    Columns,
)

if TYPE_CHECKING:
    from suwi.spark.columns import Section


def decode_one_by_one(
    partition: TopicPartition,
    data: memoryview,
    sections: Iterable["Section"],
    start: Offset,
    end: Offset,
    include_headers: bool,
) -> Columns:
    """Raises `InvalidRecord`, `BadTimestamp`."""
    records: list[Record] = []
    kinds: list[int] = []
    for section in sections:
        kind = LOG_APPEND_TIME if section.header.uses_log_append_time else CREATE_TIME
        plain = bytes(data[section.start : section.end])
        for record in read_records(plain, section.header, with_headers=include_headers):
            if start <= record.offset < end:
                if abs(record.timestamp) > MICROSECONDS_MS_MAX:
                    raise BadTimestamp(partition, record.offset, record.timestamp)
                records.append(record)
                kinds.append(kind)
    times_us = pa.array([record.timestamp * 1000 for record in records], pa.int64())
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


def _headers(headers: Headers) -> list[dict[str, str | bytes | None]] | None:
    """The connector has null for a record without headers."""
    return [{"key": _as_text(key), "value": value} for key, value in headers] or None


def _as_text(key: str) -> str:
    """A key may be any bytes; Java makes what is not UTF-8 a question mark in a diamond."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
