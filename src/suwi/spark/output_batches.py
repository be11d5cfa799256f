"""One batch of a query into several outputs: its tasks, its manifest and its commits (ADR 20).

`OutputBatches` is what Spark calls for each batch, on the driver. Tasks (`OutputTask`) write the
files of all tables and open the transactions of all topics in one job; the driver stores a manifest
of them in the checkpoint, then commits each output. A replay that finds a manifest commits only.
Invariants: nothing is committed before the manifest is stored, and every commit may be repeated.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from suwi.env import SystemClock
from suwi.spark.delta.log import open_for_reading
from suwi.spark.delta.storage import local_path
from suwi.spark.manifest import Manifest, ManifestLog, OutputsChanged, Record
from suwi.spark.option_table import Use
from suwi.spark.options import (
    BadOption,
    read_iceberg_options,
    read_sink_options,
    read_table_options,
)
from suwi.spark.origin import BATCH_ID, QUERY_ID, RUN_ID, Origin, log_suppressed, version_property
from suwi.spark.query_plan import SPARK, Plan, difference
from suwi.spark.rules import BAD, BROKEN, RowRules, letter_schema
from suwi.spark.write import DELTA, ICEBERG, TOPIC

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from suwi.spark.delta.files import FileWriter, WrittenFile
    from suwi.spark.exactly_once import BatchTransactions, Handout, OpenTransaction, Token
    from suwi.spark.session import Session
    from suwi.spark.table_commit import TableFormat
    from suwi.spark.topic_writer import TransactionTask

DEAD_LETTERS: Final = "dead_letters"
"""The name of the output for records and rows that cannot be used."""
ROW: Final = "row"
_PREFIX: Final = "transactionalidprefix"


@dataclass(frozen=True, slots=True)
class Output:
    """Where rows go and which; `delta_output`, `iceberg_output` and `topic_output` make one."""

    form: str
    options: Mapping[str, str]
    when: str | None = None
    """A condition of Spark SQL on the rows; without it all of them."""
    select: str | None = None
    """The columns, as after SELECT; without it all of them."""


def output_column(at: int) -> str:
    """What a task is told of each row: whether it goes to the output, or its columns there."""
    return f"to{at}"


# -- outputs ---------------------------------------------------------------------------------------


class TableOutput:
    order = 1

    def __init__(self, table: "TableFormat") -> None:
        self._table = table
        self.to = table.options.uri

    def judge(self, schema: "StructType") -> None:
        """On the driver, before tasks start. Raises `DeltaSinkError`."""
        from suwi.spark.table_writer import OutputWriter

        self._writer = OutputWriter(self._table, schema)

    def create(self, schema: "StructType") -> None:
        self.judge(schema)
        self._table.open(schema)

    def hand_out(self, origin: Origin, prefix: str, version: int) -> None:
        """Files have names that nobody else has: there is nothing to hand out."""

    def open(self) -> "FileWriter":
        """In a task."""
        return self._writer.open()

    def describe(self, wrote: Sequence["list[WrittenFile]"], broken: Mapping[str, int]) -> Any:
        """For the manifest. Raises what would keep it from being committed, `DeltaSinkError`."""
        batch = self._writer.batch([file for files in wrote for file in files], broken)
        if batch.files:
            self._table.open(batch.schema).check(batch)
        files = [
            {**asdict(file), "columns_with_nulls": sorted(file.columns_with_nulls)}
            for file in batch.files
        ]
        return (files or self._table.options.replace_where) and {
            "files": files,
            "schema": batch.schema.jsonValue(),
            "partition_by": batch.partition_by,
            "broken": dict(broken),
            "identity": batch.identity,
        }

    def finish(self, said: Mapping[str, Any], origin: Origin, manifest: str, replay: bool) -> None:
        """Commit. Raises `OutputsChanged`, `DeltaSinkError` and the format's own errors."""
        from pyspark.sql.types import StructType

        from suwi.spark.delta.files import WrittenFile
        from suwi.spark.delta.upsert import STAGING
        from suwi.spark.table_commit import Batch, check_files, commit_files

        files = [
            WrittenFile(**{**file, "columns_with_nulls": frozenset(file["columns_with_nulls"])})
            for file in said["files"]
        ]
        is_staged = any(file.path.startswith(f"{STAGING}/") for file in files)
        if files and is_staged != self._table.options.is_staged:
            raise OutputsChanged(
                f"batch {origin.version} is not committed yet, and was written "
                f"{'with' if is_staged else 'without'} keys for {self.to}: run once more with keys "
                "as they were, then change them"
            )
        batch = Batch(
            origin,
            StructType.fromJson(said["schema"]),
            tuple(said["partition_by"]),
            files,
            broken=said["broken"],
            identity=said.get("identity", ""),
        )
        if replay:
            check_files(self._table, batch, manifest)
        commit_files(self._table, batch)

    def knows(self, query: str) -> bool:
        """Whether it was written by the query, under its bare id."""
        found = self._table.find()
        return found is not None and found.version(query) is not None


def _delta(options: Mapping[str, str]) -> TableOutput:
    """Raises `BadOption`."""
    from suwi.spark.delta.data_source import DeltaFormat

    return TableOutput(DeltaFormat(read_table_options(options)))


def _iceberg(options: Mapping[str, str]) -> TableOutput:
    """Raises `BadOption`."""
    from suwi.spark.iceberg.data_source import IcebergFormat

    return TableOutput(IcebergFormat(read_iceberg_options(options)))


class TopicOutput:
    order = 0
    """Before tables: transactions have a time-out."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `BadOption`."""
        self._given = options
        self._options = read_sink_options(options)
        self._prefix = self._options.transactional_id_prefix
        self.to = f"topic {self._options.topic or '*'}"
        self._handout: Handout | None = None
        self._tokens: dict[Token, None] = {}
        """Ids of this run that are free between two batches."""
        self._is_there = False
        """The batch was written before the query had several outputs."""

    def judge(self, schema: "StructType") -> None:
        from suwi.spark.topic_writer import output_options

        output_options(self._given, schema)
        self._columns = schema.fieldNames()

    create = judge

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": {}}

    def hand_out(self, origin: Origin, prefix: str, version: int) -> None:
        """Before a batch: ids for its tasks. Raises a `BrokerError`, OSError."""
        session, transactions = self._transactions(self._prefix or prefix)
        self._is_there = False
        if self._handout is None and self._prefix and self._options.topic is not None:
            # As the only output, it kept the list of its last batch in the brokers.
            self._is_there = session.run(transactions.prepare()).last.has(origin)
        self._handout = session.run(transactions.hand_out(version, self._tokens))
        self._tokens |= dict.fromkeys(one.token for one in self._handout.pool)

    def open(self) -> "TransactionTask":
        from suwi.spark.topic_writer import TransactionTask

        assert self._handout is not None
        return TransactionTask(self._options, self._columns, self._handout, self._is_there)

    def describe(self, wrote: Sequence["OpenTransaction | None"], broken: Mapping[str, int]) -> Any:
        assert self._handout is not None
        opened = [one for one in wrote if one is not None]
        if opened:
            self._transactions()[1].check_time(self._handout)
        self._tokens |= dict.fromkeys(one.token for one in opened)
        used = {one.token for one in opened}
        self._unused = [one for one in self._handout.pool if one.token not in used]
        said = [[token.version, token.random.hex(), *who] for token, who in opened]
        return said and {"prefix": self._options.transactional_id_prefix, "transactions": said}

    def finish(self, said: Mapping[str, Any], origin: Origin, manifest: str, replay: bool) -> None:
        """Raises `TransactionsLost`, a `BrokerError`, OSError."""
        from suwi.client.identity import Identity
        from suwi.model.ids import ProducerEpoch, ProducerId
        from suwi.spark.exactly_once import OpenTransaction, Token

        opened = [
            OpenTransaction(
                Token(version, bytes.fromhex(random)),
                Identity(ProducerId(producer), ProducerEpoch(epoch)),
            )
            for version, random, producer, epoch in said["transactions"]
        ]
        session, transactions = self._transactions(said["prefix"])
        session.run(transactions.commit_all(opened, manifest))
        if not replay:
            # Of attempts that were not the first to be done: until it is aborted, readers wait.
            session.run(transactions.abort(self._unused))

    def knows(self, query: str) -> bool:
        """As the table's; a topic knows only who has written with its prefix, as the only sink."""
        if not self._prefix or self._options.topic is None:
            return False
        session, transactions = self._transactions()
        return session.run(transactions.knows(query))

    def _transactions(self, prefix: str | None = None) -> "tuple[Session, BatchTransactions]":
        from suwi.spark.exactly_once import BatchTransactions
        from suwi.spark.session import session_for

        if prefix is not None:
            self._options = replace(self._options, transactional_id_prefix=prefix)
        session = session_for(self._options.connection)
        return session, BatchTransactions(session.cluster, self._options)


AnyOutput: TypeAlias = TableOutput | TopicOutput
_KINDS: Final[Mapping[str, Callable[[Mapping[str, str]], AnyOutput]]] = {
    DELTA: _delta,
    ICEBERG: _iceberg,
    TOPIC: TopicOutput,
}


# -- in a task -------------------------------------------------------------------------------------


class OutputTask:
    """Writes the rows of a task attempt to all outputs; its result says what it wrote."""

    def __init__(self, outputs: Mapping[str, AnyOutput], rules: RowRules | None) -> None:
        self._outputs = outputs
        self._rules = rules

    def __call__(self, batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        from suwi.spark.gc_freeze import freeze_loaded

        freeze_loaded("write")
        opened = {name: output.open() for name, output in self._outputs.items()}
        broken: Counter[str] = Counter()
        try:
            for batch in batches:
                for name, rows in self._routed(batch, broken):
                    opened[name].write([rows])
            wrote = {name: one.close() for name, one in opened.items()}
        except BaseException:
            for one in opened.values():
                one.discard()
            raise
        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps((wrote, dict(broken)))]})

    def _routed(
        self, batch: "pa.RecordBatch", broken: "Counter[str]"
    ) -> "Iterator[tuple[str, pa.RecordBatch]]":
        import pyarrow as pa
        import pyarrow.compute as pc

        names = batch.schema.names
        rows = pa.RecordBatch.from_struct_array(batch.column(ROW)) if ROW in names else None
        kept = None
        if BROKEN in names:
            assert self._rules is not None
            assert rows is not None
            letters: list[pa.RecordBatch] = []
            kept = self._rules.kept(
                rows, batch.column(BROKEN).to_pylist(), broken, lambda _, one: letters.append(one)
            )
            yield from ((DEAD_LETTERS, one) for one in letters)
        if BAD in names:
            yield DEAD_LETTERS, _valid(batch.column(BAD))
        for at, name in enumerate(one for one in self._outputs if one != DEAD_LETTERS):
            column = batch.column(output_column(at))
            if not pa.types.is_boolean(column.type):
                yield name, _valid(column if kept is None else column.filter(kept))
                continue
            assert rows is not None
            yield name, rows.filter(column if kept is None else pc.and_(column, kept))


def _valid(structs: "pa.StructArray") -> "pa.RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_struct_array(structs.filter(structs.is_valid()))


# -- on the driver ---------------------------------------------------------------------------------


def local_folder(checkpoint: str) -> str:
    """Raises `BadOption`."""
    folder = local_path(checkpoint)
    if not folder:
        raise BadOption(
            f"the checkpoint {checkpoint!r} is not a directory of this machine: with several "
            "outputs the driver writes manifests into it"
        )
    return folder


def recorded_plan(checkpoint: str) -> Plan:
    """Inputs and stateful steps that a checkpoint began with; empty if they are not known. Raises
    `BadOption`."""
    record = ManifestLog(local_folder(checkpoint)).record()
    return {} if record is None else record.plan


class OutputBatches:
    """What `foreachBatch` calls."""

    def __init__(
        self,
        outputs: Mapping[str, Output],
        checkpoint: str | None,
        rules: RowRules | None = None,
        *,
        tables: Mapping[str, str] | None = None,
        plan: Plan | None = None,
        after: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`checkpoint`: None for a batch that is no part of a stream. `after` is called when a step
        is done. Raises `BadOption`, `OutputsChanged`."""
        # Under a prefix there is one driver, which aborts what others have open: that of a stream.
        left_out = _PREFIX if checkpoint is None else ""
        self._outputs: dict[str, AnyOutput] = {
            name: _KINDS[one.form](
                {key: value for key, value in one.options.items() if key.lower() != left_out}
            )
            for name, one in outputs.items()
        }
        self._names = [name for name in outputs if name != DEAD_LETTERS]
        self._rules = rules
        self._tables = {
            name: read_table_options({"path": path}, Use.TABLE_BATCH)
            for name, path in (tables or {}).items()
        }
        self._plan = plan or {}
        self._after = after
        self._log = None if checkpoint is None else ManifestLog(local_folder(checkpoint))
        self._record: Record | None = None
        self._version = 0
        reason = None if checkpoint is None else difference(recorded_plan(checkpoint), self._plan)
        if reason is not None:
            raise OutputsChanged(reason)

    def create(self, wide: "StructType") -> None:
        """Tables, before the first record comes. Raises `BadOption`, `DeltaSinkError`."""
        for output, schema in self._with_schemas(wide):
            output.create(schema)

    def __call__(self, wide: "DataFrame", batch: int) -> None:
        context = wide.sparkSession.sparkContext
        query, run = context.getLocalProperty(QUERY_ID), context.getLocalProperty(RUN_ID)
        if context.getLocalProperty(BATCH_ID) != str(batch):
            raise BadOption("the query's id and batch are not known: is this not a classic session")
        origin = Origin(query, batch, run)
        self.run(origin, wide.schema, lambda task: _messages(wide, task), context.setLocalProperty)

    def write(self, wide: "DataFrame", query: str, version: int) -> None:
        """A batch that is no part of a stream."""
        self._record, self._version = Record(""), SystemClock().now_ms() // 1000
        origin = Origin(query, version, None)
        manifest = self._compute(origin, wide.schema, lambda task: _messages(wide, task))
        self._finish(manifest, replay=False)

    def run(
        self,
        origin: Origin,
        schema: "StructType",
        work: Callable[[OutputTask], Iterable[Any]],
        set_property: Callable[[str, str], None] = lambda name, value: None,
    ) -> None:
        """One batch of a query; `work` lets tasks do it, which get the properties that are set.
        Raises `AnotherProcess`, `OutputsChanged`, and what outputs raise."""
        assert self._log is not None
        if self._record is None:
            self._begin(origin.app_id)
        manifest = self._log.find(origin.version)
        is_replay = manifest is not None
        if is_replay:
            log_suppressed("several outputs", origin)
        if manifest is None:
            versions = {name: open_for_reading(one).version() for name, one in self._tables.items()}
            for name, version in versions.items():
                set_property(version_property(self._tables[name].uri), str(version))
            manifest = replace(self._compute(origin, schema, work), tables=versions)
            self._after("files")
            if manifest.outputs:
                self._log.store(manifest)
                self._after("manifest")
        self._finish(manifest, replay=is_replay)

    def _begin(self, query: str) -> None:
        """The first batch of a run."""
        assert self._log is not None
        self._log.lock()
        record, last = self._log.record(), self._log.last()
        if last is not None and last.query != query:
            raise OutputsChanged(
                f"{self._log.path(last.batch)} belongs to another query: remove the whole "
                "checkpoint, or none of it"
            )
        versions = [SystemClock().now_ms() // 1000, 0 if last is None else last.version + 2]
        if record is None:
            known = [name for name in self._names if self._outputs[name].knows(query)]
            record = Record((known or self._names)[0], plan=self._plan)
        self._version = max(*versions, record.version + 1)
        plan = record.plan if record.plan.get(SPARK) == self._plan.get(SPARK) else self._plan
        self._record = replace(record, version=self._version, plan=plan)
        self._log.store_record(self._record)

    def _compute(
        self, origin: Origin, schema: "StructType", work: Callable[[OutputTask], Iterable[Any]]
    ) -> Manifest:
        for output, its_schema in self._with_schemas(schema):
            output.judge(its_schema)
        self._version += 1
        for name, output in self._outputs.items():
            its_origin = origin._replace(app_id=self._app_id(origin.app_id, name))
            output.hand_out(its_origin, f"suwi-{origin.app_id}-{name}", self._version)
        self._after("begin")
        messages = list(work(OutputTask(self._outputs, self._rules)))
        broken = sum((Counter(counts) for _, counts in messages), Counter[str]())
        outputs = {}
        for name, output in self._outputs.items():
            said = output.describe([wrote[name] for wrote, _ in messages], broken)
            if said:
                outputs[name] = {"to": output.to, **said}
        return Manifest(origin.version, origin.app_id, origin.run_id, self._version, outputs)

    def _finish(self, manifest: Manifest, *, replay: bool) -> None:
        for name, said in manifest.outputs.items():
            output = self._outputs.get(name)
            if output is None or output.to != said["to"]:
                raise OutputsChanged(manifest.still_needs(name))
        path = "" if self._log is None else self._log.path(manifest.batch)
        for name in sorted(manifest.outputs, key=lambda name: self._outputs[name].order):
            origin = Origin(self._app_id(manifest.query, name), manifest.batch, manifest.run)
            self._outputs[name].finish(manifest.outputs[name], origin, path, replay)
            self._after(f"commit of {name}")

    def _app_id(self, query: str, name: str) -> str:
        """Under which an output knows the batches of the query."""
        assert self._record is not None
        return query if name == self._record.first else f"{query}:{name}"

    def _with_schemas(self, wide: "StructType") -> "Iterator[tuple[AnyOutput, StructType]]":
        for at, name in enumerate(self._names):
            kind: Any = wide[output_column(at)].dataType
            yield self._outputs[name], kind if hasattr(kind, "fields") else wide[ROW].dataType
        if DEAD_LETTERS in self._outputs:
            from pyspark.sql.pandas.types import from_arrow_schema

            yield self._outputs[DEAD_LETTERS], from_arrow_schema(letter_schema())


def _messages(wide: "DataFrame", task: OutputTask) -> Iterator[Any]:
    wrote = wide.mapInArrow(lambda batches: task(batches), "message binary")
    for (message,) in wrote.collect():
        yield pickle.loads(message)
