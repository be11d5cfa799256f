"""Rows into topics: what `format("suwi")` does with a DataFrame that is written.

The columns are those of Spark's Kafka connector: `value`, and if they are there `key`, `topic`,
`partition` and `headers`; others are left out. Each task has an idempotent producer: what it sends
again after a lost connection is stored once, in order. A task that Spark runs again writes its
rows again: at least once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from suwi.client.delivery import Delivery
from suwi.client.producer import Producer
from suwi.env import SystemClock
from suwi.records.record import Headers
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.options import BadOption, SinkOptions, read_sink_options
from suwi.spark.releases import DataSourceStreamArrowWriter
from suwi.spark.session import session_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TEXT: Final = ("string", "binary")
_COLUMNS: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
# So many deliveries may gather before it is looked at which are done and whether one failed.
_LOOK_AT: Final = 20_000


class BadRow(Exception):
    """A row that cannot become a record."""


@dataclass(frozen=True, slots=True)
class TaskSent(WriterCommitMessage):
    rows: int


def batch_writer(
    options: Mapping[str, str], schema: "StructType", overwrite: bool
) -> "TopicWriter":
    """On the driver. Raises `BadOption`."""
    if overwrite:
        raise BadOption("a topic cannot be overwritten: use mode append")
    return TopicWriter(_read(options, schema), schema.fieldNames())


def stream_writer(
    options: Mapping[str, str], schema: "StructType", overwrite: bool
) -> "TopicStreamWriter":
    """On the driver. Raises `BadOption`."""
    if overwrite:
        raise BadOption("a topic cannot be overwritten: use outputMode append or update")
    return TopicStreamWriter(_read(options, schema), schema.fieldNames())


def _read(options: Mapping[str, str], schema: "StructType") -> SinkOptions:
    read = read_sink_options(options)
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise BadOption("there is no column `value`")
    if "topic" not in kinds and read.topic is None:
        raise BadOption("no topic: set option 'topic', or have a column `topic`")
    for name, allowed in _COLUMNS.items():
        if name in kinds and kinds[name] not in allowed:
            raise BadOption(f"column `{name}` is {kinds[name]}: allowed: {' or '.join(allowed)}")
    return read


class _Writing:
    def __init__(self, options: SinkOptions, columns: Iterable[str]) -> None:
        self._options = options
        self._columns = frozenset(columns) & _COLUMNS.keys()

    def _send(self, batches: Iterator["pa.RecordBatch"]) -> TaskSent:
        """In a task. Raises what kept a record from being stored, and `BadRow`."""
        freeze_loaded("send")
        session = session_for(self._options.connection)
        return TaskSent(session.run(self._send_all(session.cluster, batches)))

    async def _send_all(self, cluster: Any, batches: Iterator["pa.RecordBatch"]) -> int:
        sent = 0
        under_way: list[Delivery] = []
        look_at = _LOOK_AT
        async with Producer(cluster, SystemClock(), self._options.producer) as producer:
            for batch in batches:
                for topic, key, value, partition, headers in self._rows(batch):
                    delivery = await producer.send(
                        topic, value, key=key, headers=headers, partition=partition
                    )
                    under_way.append(delivery)
                sent += batch.num_rows
                if len(under_way) > look_at:
                    under_way = _without_delivered(under_way)
                    look_at = max(_LOOK_AT, 2 * len(under_way))
            await producer.flush()
            _without_delivered(under_way)
        return sent

    def _rows(
        self, batch: "pa.RecordBatch"
    ) -> Iterator[tuple[str, bytes | None, bytes | None, int | None, Headers]]:
        nothing = [None] * batch.num_rows
        columns = {
            name: _as_bytes(batch.column(name)) if name in ("key", "value") else batch.column(name)
            for name in self._columns
        }
        values = {name: column.to_pylist() for name, column in columns.items()}
        topics = values.get("topic", nothing)
        if self._options.topic is not None:
            topics = [self._options.topic] * batch.num_rows
        if None in topics:
            raise BadRow("a row has no topic: set option 'topic', or fill the column `topic`")
        return zip(
            topics,
            values.get("key", nothing),
            values["value"],
            values.get("partition", nothing),
            map(_headers, values.get("headers", nothing)),
            strict=True,
        )


class TopicWriter(_Writing, DataSourceArrowWriter):
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskSent:
        return self._send(iterator)


class TopicStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """At least once.

    EXACTLY ONCE GOES HERE, when the broker has transactions: `write` produces under a transaction
    of its own (query, epoch, task, attempt), flushes and leaves it open, and returns its id,
    producer id, producer epoch and rows in `TaskSent`; `commit` stores the list of them in one
    OffsetCommit (group = query) and then ends each; a replayed epoch whose list is stored writes
    nothing and ends what is open; `abort` ends them the other way.
    """

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskSent:
        return self._send(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Every task has flushed: there is nothing left to do."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """What was sent stays sent."""


def _as_bytes(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _headers(entries: list[dict[str, Any]] | None) -> Headers:
    return tuple((entry["key"], entry["value"]) for entry in entries) if entries else ()


def _without_delivered(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Those still under way. Raises what kept one from being delivered."""
    waiting = []
    for delivery in deliveries:
        if delivery.is_done:
            delivery.result()
        else:
            waiting.append(delivery)
    return waiting
