"""Rows into topics: what `format("suwi")` does with a DataFrame that is written.

The columns are those of Spark's Kafka connector: `value`, and if they are there `key`, `topic`,
`partition` and `headers`; others are left out. Each task has an idempotent producer: what it sends
again after a lost connection is stored once, in order. A task that Spark runs again writes its
rows again: at least once. With `transactionalIdPrefix` tasks write in transactions, which the
driver commits (`exactly_once.py`): exactly once.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivery
from suwi.client.producer import Producer
from suwi.client.transactions import TransactionalProducer
from suwi.env import SystemClock
from suwi.records.record import Headers
from suwi.spark.exactly_once import BatchTransactions, Handout, OpenTransaction, Token
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.options import BadOption, SinkOptions, read_sink_options
from suwi.spark.origin import Origin, log_suppressed, origin_of_task, task_index
from suwi.spark.releases import DataSourceStreamArrowWriter
from suwi.spark.session import session_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_T = TypeVar("_T")

_TEXT: Final = ("string", "binary")
_COLUMNS: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
# The number of pending deliveries at which the writer checks which are done or failed.
_LOOK_AT: Final = 20_000


class BadRow(Exception):
    """A row that cannot become a record."""


@dataclass(frozen=True, slots=True)
class TaskSent(WriterCommitMessage):
    rows: int
    handout: Handout | None = None
    """With its pool from the first task only."""
    origin: Origin | None = None
    transaction: OpenTransaction | None = None
    """None: nothing was written, or nothing is left to be committed."""


def batch_writer(
    options: Mapping[str, str], schema: "StructType", overwrite: bool
) -> "TopicWriter":
    """On the driver. Raises `BadOption`."""
    if overwrite:
        raise BadOption("a topic cannot be overwritten: use mode append")
    return TopicWriter(_read(options, schema), schema.fieldNames())


def send_records(options: Mapping[str, str], batch: "pa.RecordBatch") -> None:
    """In a task, beside its own rows. Raises what keeps a record from being stored."""
    TopicWriter(read_sink_options(options), batch.schema.names).write(iter([batch]))


def stream_writer(
    options: Mapping[str, str], schema: "StructType", overwrite: bool
) -> "TopicStreamWriter":
    """On the driver. Raises `BadOption`."""
    if overwrite:
        raise BadOption("a topic cannot be overwritten: use outputMode append or update")
    return TopicStreamWriter(_read(options, schema), schema.fieldNames())


def output_options(options: Mapping[str, str], schema: "StructType") -> SinkOptions:
    """Of one output of several. Raises `BadOption`."""
    read = _read_columns(options, schema)
    _check_acks(read)
    return read


def _read(options: Mapping[str, str], schema: "StructType") -> SinkOptions:
    read = _read_columns(options, schema)
    if read.transactional_id_prefix is not None:
        if read.topic is None:
            raise BadOption("transactionalIdPrefix needs option 'topic': it goes into one topic")
        _check_acks(read)
    return read


def _check_acks(options: SinkOptions) -> None:
    if not options.producer.is_idempotent:
        raise BadOption("transactionalIdPrefix needs kafka.acks=all", "kafka.acks")


def _read_columns(options: Mapping[str, str], schema: "StructType") -> SinkOptions:
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
    """What writing a stream and writing a batch have in common."""

    def __init__(self, options: SinkOptions, columns: Iterable[str]) -> None:
        self._options = options
        self._columns = frozenset(columns) & _COLUMNS.keys()
        self._handout: Handout | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a writer on the driver, for the tasks of one batch, and for nothing else:
        the one that commits a stream's batch is built anew. So this is where a batch begins."""
        if self._options.transactional_id_prefix is not None and self._handout is None:
            self._handout = self._run(BatchTransactions.prepare)
        return self.__dict__

    def _run(self, work: Callable[[BatchTransactions], Coroutine[Any, Any, _T]]) -> _T:
        session = session_for(self._options.connection)
        return session.run(work(BatchTransactions(session.cluster, self._options)))

    # -- in a task -------------------------------------------------------------------------------

    def _send(self, batches: Iterator["pa.RecordBatch"]) -> TaskSent:
        """Raises what kept a record from being stored, and `BadRow`."""
        freeze_loaded("send")
        dead: list[tuple[Mapping[str, str], pa.RecordBatch]] = []
        if self._options.rules is not None:
            # They are sent afterwards: batches are read while the session's loop runs.
            batches = self._options.rules.apply(batches, Counter(), lambda *one: dead.append(one))
        sent = self._send_kept(batches)
        for options, batch in dead:
            send_records(options, batch)
        return sent

    def _send_kept(self, batches: Iterator["pa.RecordBatch"]) -> TaskSent:
        handout = self._handout
        if handout is not None:
            return self._run(lambda all_: self._send_in_transaction(all_, handout, batches))
        session = session_for(self._options.connection)
        return TaskSent(session.run(self._send_alone(session.cluster, batches)))

    async def _send_alone(self, cluster: Cluster, batches: Iterable["pa.RecordBatch"]) -> int:
        async with Producer(cluster, SystemClock(), self._options.producer) as producer:
            return await self._send_all(producer, batches)

    async def _send_in_transaction(
        self, transactions: BatchTransactions, handout: Handout, batches: Iterator["pa.RecordBatch"]
    ) -> TaskSent:
        origin, task = origin_of_task(), task_index()
        given_back = handout if task == 0 else handout._replace(pool=())
        is_replay = handout.last.has(origin)
        if is_replay and task == 0:
            log_suppressed(f"topic {self._options.topic}", origin)
        first = next((batch for batch in batches if batch.num_rows and not is_replay), None)
        if first is None:  # Everything is read: else Spark does not use the worker again.
            return TaskSent(0, given_back, origin)
        token, producer = await transactions.begin(handout, task)
        try:
            rows = await self._send_all(producer, chain([first], batches))
            opened = OpenTransaction(token, producer.identity)
        except Exception:
            await _abort(producer)
            raise
        finally:
            await producer.close()
        return TaskSent(rows, given_back, origin, opened)

    async def _send_all(
        self, producer: Producer | TransactionalProducer, batches: Iterable["pa.RecordBatch"]
    ) -> int:
        sent = 0
        under_way: list[Delivery] = []
        look_at = _LOOK_AT
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

    # -- on the driver ---------------------------------------------------------------------------

    def _commit(self, messages: Sequence[TaskSent | None]) -> None:
        """All tasks have flushed."""
        opened = _transactions(messages)
        first = messages[0] if messages else None
        if first is None or first.handout is None:
            return
        handout, origin = first.handout, first.origin
        assert origin is not None
        # A batch without rows is listed too: the ids that it was given are used again.
        if opened or not handout.last.has(origin):
            self._run(lambda all_: all_.commit(handout, origin, opened))

    def _abort(self, messages: Sequence[TaskSent | None]) -> None:
        """Without transactions, what was sent stays sent."""
        # If all tasks are done a commit was tried, and the list may be stored.
        if None in messages and (opened := _transactions(messages)):
            self._run(lambda all_: all_.abort(opened))


class TransactionTask(_Writing):
    """The rows of one task attempt for one output of several, in a transaction that stays open."""

    def __init__(
        self, options: SinkOptions, columns: Iterable[str], handout: Handout, is_there: bool
    ) -> None:
        """`is_there`: the topic has the rows already, and they are not written again."""
        super().__init__(options, columns)
        self._given_out = handout
        self._is_there = is_there
        self._begun: tuple[Token, TransactionalProducer] | None = None

    def write(self, batches: Iterable["pa.RecordBatch"]) -> None:
        """Raises what kept a record from being stored, and `BadRow`."""
        given = [batch for batch in batches if batch.num_rows and not self._is_there]
        if given:
            self._run(lambda all_: self._write(all_, given))

    async def _write(self, transactions: BatchTransactions, given: list["pa.RecordBatch"]) -> None:
        if self._begun is None:
            self._begun = await transactions.begin(self._given_out, 0)
        # It flushes: until the next rows come, the session's loop stands still.
        await self._send_all(self._begun[1], given)

    def close(self) -> OpenTransaction | None:
        """None: there were no rows."""
        if self._begun is None:
            return None
        token, producer = self._begun
        opened = OpenTransaction(token, producer.identity)
        self._run(lambda _: producer.close())
        return opened

    def discard(self) -> None:
        if self._begun is not None:
            producer = self._begun[1]
            self._run(lambda _: _abort(producer))
            self._run(lambda _: producer.close())


class TopicWriter(_Writing, DataSourceArrowWriter):
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskSent:
        return self._send(iterator)

    def commit(self, messages: list[Any]) -> None:
        self._commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._abort(messages)


class TopicStreamWriter(_Writing, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskSent:
        return self._send(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def _transactions(messages: Iterable[TaskSent | None]) -> list[OpenTransaction]:
    sent = (message.transaction for message in messages if message is not None)
    return [transaction for transaction in sent if transaction is not None]


async def _abort(producer: TransactionalProducer) -> None:
    with suppress(Exception):  # Else the next batch aborts it, or its time-out.
        await producer.abort()


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
