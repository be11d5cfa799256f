"""The row schema of Spark's Kafka connector, for Spark and for Arrow."""

from typing import Final, NamedTuple

import pyarrow as pa

from suwi.records.batch import BatchHeader

TIMESTAMP: Final = pa.timestamp("us", "UTC")
HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER))
_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", TIMESTAMP),
    ("timestampType", pa.int32()),
)
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
MICROSECONDS_MS_MAX: Final = (2**63 - 1) // 1000


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Exactly what Spark expects: it compares before it reads."""
    return pa.schema([*_FIELDS, ("headers", HEADERS)] if include_headers else _FIELDS)


class Columns(NamedTuple):
    """What differs from row to row; topic and partition do not."""

    key: pa.Array
    value: pa.Array
    offset: pa.Array
    timestamp: pa.Array
    timestamp_type: pa.Array
    headers: pa.Array | None


class Section(NamedTuple):
    """The plain records of one batch: a part of the group's data."""

    header: BatchHeader
    start: int
    end: int
