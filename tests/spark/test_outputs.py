"""Several outputs of one batch: all of them have it once, whoever died when.

The driver and its tasks are called as Spark calls them, without Spark; routing is by chance.
"""

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from suwi.spark import manifest as manifests
from suwi.spark import topic_writer
from suwi.spark.delta.errors import FilesGone, SchemaMismatch
from suwi.spark.delta.maintenance import clean_orphans
from suwi.spark.exactly_once import TransactionsLost
from suwi.spark.manifest import AnotherProcess, ManifestLog, OutputsChanged
from suwi.spark.options import BadOption
from suwi.spark.origin import Origin
from suwi.spark.output_batches import DEAD_LETTERS, Output, OutputBatches, OutputTask
from suwi.spark.outputs import (
    check_is_local,
    delta_output,
    iceberg_output,
    topic_output,
    with_names,
)
from suwi.spark.releases import arrow_schema
from suwi.spark.rules import BAD, BROKEN, RowRules, letter_schema
from suwi.spark.session import close_sessions
from tests.broker_process import BrokerProcess
from tests.spark.topics import committed_values, make_topic

ROW = StructType([StructField("n", LongType()), StructField("text", StringType())])
VALUE = StructType([StructField("value", StringType())])
LETTER = pa.struct(list(letter_schema()))
TABLES = ("left", "right")
HAS_ICEBERG = find_spec("pyiceberg") is not None and find_spec("duckdb") is not None


class Crash(Exception):
    """The process ends here."""


def wide(outputs: Iterable[str]) -> StructType:
    """Two tables get rows as they are, a topic gets `value`."""
    kinds = [VALUE if one == "topic" else BooleanType() for one in outputs if one != DEAD_LETTERS]
    columns = [StructField(f"to{at}", kind) for at, kind in enumerate(kinds)]
    return StructType([StructField("row", ROW), *columns])


class Job:
    """A query that routes each number to one of its outputs, by chance."""

    def __init__(self, folder: Path, broker: BrokerProcess | None = None) -> None:
        self.folder, self.broker = folder, broker
        self.outputs: dict[str, Output] = {
            name: delta_output(str(folder / name)) for name in TABLES
        }
        self.query = "query 1"
        self.run = 1
        self.computed: list[int] = []
        if broker is not None:
            for name in ("topic", DEAD_LETTERS):
                topic = make_topic(broker.address, partitions=2)
                options = {"transactionalIdPrefix": topic}
                self.outputs[name] = topic_output(broker.address, topic, options=options)
            if HAS_ICEBERG:
                self.outputs["iceberg"] = iceberg_output("lake.t", warehouse=str(folder / "lake"))

    def batches(self, after: Callable[[str], None] = lambda step: None) -> OutputBatches:
        """A driver that starts."""
        self.run += 1
        close_sessions()
        return OutputBatches(self.outputs, str(self.folder / "checkpoint"), after=after)

    def do(self, driver: OutputBatches, batch: int, numbers: Sequence[int]) -> None:
        def work(task: OutputTask) -> Iterable[Any]:
            self.computed.append(batch)
            half = len(numbers) // 2
            return [attempt(task, self.rows(part)) for part in (numbers[:half], numbers[half:])]

        origin = Origin(self.query, batch, f"run {self.run}")
        driver.run(origin, wide(self.outputs), work)

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        names = [name for name in self.outputs if name != DEAD_LETTERS]
        goes = [random.choice(list(self.outputs)) for _ in numbers]
        columns: dict[str, Any] = {
            "row": pa.array([{"n": n, "text": str(n)} for n in numbers], to_arrow(ROW))
        }
        for at, name in enumerate(names):
            here = [one == name for one in goes]
            columns[f"to{at}"] = pa.array(here)
            if name == "topic":
                pairs = zip(numbers, here, strict=True)
                values = [{"value": str(n)} if is_here else None for n, is_here in pairs]
                columns[f"to{at}"] = pa.array(values, to_arrow(VALUE))
        if DEAD_LETTERS in self.outputs:
            letters = [
                {"key": None, "value": str(n), "headers": []} if one == DEAD_LETTERS else None
                for n, one in zip(numbers, goes, strict=True)
            ]
            columns[BAD] = pa.array(letters, LETTER)
        return pa.RecordBatch.from_pydict(columns)

    def seen(self) -> Counter[int]:
        """Every number, and how often it stands somewhere, for those who read committed rows."""
        found: list[int] = []
        for name in TABLES:
            if (self.folder / name).exists():
                rows = DeltaTable(str(self.folder / name)).to_pyarrow_table().to_pylist()
                found += [row["n"] for row in rows]
        if "iceberg" in self.outputs:
            from tests.spark.iceberg.tables import rows_of

            found += [row["n"] for row in rows_of(self.folder / "lake", "lake.t")]
        for name in ("topic", DEAD_LETTERS):
            if self.broker is not None and name in self.outputs:
                topic = self.outputs[name].options["topic"]
                found += map(int, committed_values(self.broker.address, topic))
        return Counter(found)


def to_arrow(schema: StructType) -> pa.DataType:
    return pa.struct(list(arrow_schema(schema)))


def attempt(task: OutputTask, *batches: pa.RecordBatch) -> Any:
    """A task in a process of its own."""
    ((message,),) = [one.column(0).to_pylist() for one in pickle.loads(pickle.dumps(task))(batches)]
    return pickle.loads(message)


def dies_after(step: str) -> Callable[[str], None]:
    def after(done: str) -> None:
        if done == step:
            raise Crash(step)

    return after


STEPS = [
    "begin",
    "files",
    "manifest",
    f"commit of {DEAD_LETTERS}",
    "commit of topic",
    "commit of left",
    "commit of right",
    *(["commit of iceberg"] if HAS_ICEBERG else []),
]


@pytest.mark.parametrize("step", STEPS)
def test_every_row_is_in_one_output_once_wherever_the_driver_dies(
    tmp_path: Path, broker: BrokerProcess, step: str
) -> None:
    job = Job(tmp_path, broker)
    job.do(job.batches(), 0, range(100))
    with pytest.raises(Crash):
        job.do(job.batches(dies_after(step)), 1, range(100, 200))
    before = len(job.computed)
    driver = job.batches()
    job.do(driver, 1, range(100, 200))
    is_decided = STEPS.index(step) >= STEPS.index("manifest")
    assert len(job.computed) == before + (not is_decided)
    job.do(driver, 2, range(200, 250))
    assert job.seen() == Counter(range(250))


def test_a_driver_that_dies_again_and_again_writes_nothing_twice(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)
    for batch in range(4):
        numbers = range(100 * batch, 100 * batch + 100)
        for step in random.sample(STEPS, 3):
            with suppress(Crash):  # After its manifest, a batch does not begin again.
                job.do(job.batches(dies_after(step)), batch, numbers)
        job.do(job.batches(), batch, numbers)
    assert job.seen() == Counter(range(400))


def test_a_task_that_fails_leaves_no_file_and_no_open_transaction(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)

    def work(task: OutputTask) -> Iterable[Any]:
        def batches() -> Iterable[pa.RecordBatch]:
            yield job.rows(range(50))
            raise Crash

        return [attempt_of(task, batches())]

    driver = job.batches()
    with pytest.raises(Crash):
        driver.run(Origin(job.query, 0, "run"), wide(job.outputs), work)
    assert not list(tmp_path.rglob("part-*.parquet"))
    job.do(job.batches(), 0, range(50))
    assert job.seen() == Counter(range(50))


def attempt_of(task: OutputTask, batches: Iterable[pa.RecordBatch]) -> Any:
    return list(task(batches))


def test_a_second_attempt_of_a_task_counts_once(tmp_path: Path, broker: BrokerProcess) -> None:
    job = Job(tmp_path, broker)

    def work(task: OutputTask) -> Iterable[Any]:
        attempt(task, job.rows(range(50)))  # Spark takes the other one's result.
        return [attempt(task, job.rows(range(50)))]

    driver = job.batches()
    driver.run(Origin(job.query, 0, "run"), wide(job.outputs), work)
    job.do(driver, 1, range(50, 60))
    assert job.seen() == Counter(range(60))


def test_the_first_output_keeps_the_bare_query_id_and_others_add_their_names(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    job.do(job.batches(), 0, range(100))
    job.outputs = dict(reversed(job.outputs.items()))
    job.do(job.batches(), 1, range(100, 200))
    apps = {name: f"query 1:{name}" for name in TABLES} | {"left": "query 1"}
    for name, app in apps.items():
        assert DeltaTable(str(tmp_path / name)).transaction_version(app) == 1


def test_a_checkpoint_that_began_with_one_sink_keeps_that_one_as_the_first(tmp_path: Path) -> None:
    job = Job(tmp_path)
    everything, job.outputs = job.outputs, {"right": job.outputs["right"]}
    job.do(job.batches(), 0, range(10))  # As `to_delta` does, under the query's id.
    for file in (tmp_path / "checkpoint" / manifests.DIRECTORY).glob("*.json"):
        file.unlink()
    job.outputs = everything
    job.do(job.batches(), 1, range(10, 50))
    assert DeltaTable(str(tmp_path / "right")).transaction_version("query 1") == 1
    assert DeltaTable(str(tmp_path / "left")).transaction_version("query 1") is None


def test_outputs_come_and_go_between_runs(tmp_path: Path) -> None:
    job = Job(tmp_path)
    left, right = job.outputs["left"], job.outputs["right"]
    job.outputs = {"left": left}
    job.do(job.batches(), 0, range(10))
    job.outputs = {"left": left, "right": right}
    job.do(job.batches(), 1, range(10, 60))
    job.outputs = {"right": right}
    job.do(job.batches(), 2, range(60, 70))
    assert job.seen() == Counter(range(70))


def test_an_output_with_a_batch_that_is_not_committed_cannot_go(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("commit of left")), 0, range(50))
    right = job.outputs.pop("right")
    with pytest.raises(OutputsChanged, match="batch 0 is not committed yet, and writes output rig"):
        job.do(job.batches(), 0, range(50))
    job.outputs["right"] = delta_output(str(tmp_path / "elsewhere"))
    with pytest.raises(OutputsChanged, match="run once more with that output, then change it"):
        job.do(job.batches(), 0, range(50))
    job.outputs["right"] = right
    job.do(job.batches(), 0, range(50))
    assert job.seen() == Counter(range(50))


@pytest.mark.parametrize("had", [("n",), ()])
def test_an_output_with_a_batch_that_is_not_committed_keeps_its_keys(
    tmp_path: Path, had: tuple[str, ...]
) -> None:
    """With keys the files are not the table's own, and are merged into it."""
    job = Job(tmp_path)
    path, has = str(tmp_path / "left"), () if had else ("n",)
    job.outputs = {"left": delta_output(path, keys=had)}
    job.do(job.batches(), 0, range(50))
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("manifest")), 1, range(50, 90))
    job.outputs = {"left": delta_output(path, keys=has)}
    with pytest.raises(OutputsChanged, match="run once more with keys as they were"):
        job.do(job.batches(), 1, range(50, 90))
    job.outputs = {"left": delta_output(path, keys=had)}
    job.do(job.batches(), 1, range(50, 90))
    job.outputs = {"left": delta_output(path, keys=has)}
    job.do(job.batches(), 2, range(90, 100))
    assert job.seen() == Counter(range(100))


class Frame:
    """A DataFrame of one partition, as far as outputs use it."""

    def __init__(self, job: Job, numbers: Sequence[int]) -> None:
        self.schema = wide(job.outputs)
        self._rows = job.rows(numbers)

    def mapInArrow(self, task: Callable[..., Any], _: str) -> Any:  # noqa: N802
        wrote = task([self._rows])
        rows = [(value,) for one in wrote for value in one.column(0).to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


def test_a_batch_with_the_outputs_of_a_running_stream_leaves_the_stream_alone(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)

    def write_batch(step: str) -> None:
        if step == "manifest":
            frame: Any = Frame(job, range(100, 150))
            OutputBatches(job.outputs, None).write(frame, "backfill", 1)

    driver = job.batches(write_batch)
    job.do(driver, 0, range(100))
    assert job.seen() == Counter(range(150))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("(*)", "(`a`, `b c`)"),
        ("struct(x, * , y)", "struct(x, `a`, `b c` , y)"),
        ("(x * 2, 3*(4))", "(x * 2, 3*(4))"),
        ("(text = '(*)')", "(text = '(*)')"),
        (r"(text rlike 'it\'s (*)', *)", r"(text rlike 'it\'s (*)', `a`, `b c`)"),
        ('(text = "(*)", `(*)`, *)', '(text = "(*)", `(*)`, `a`, `b c`)'),
    ],
)
def test_a_star_stands_for_columns_but_not_in_a_literal(given: str, meant: str) -> None:
    assert with_names(given, ["a", "b c"]) == meant


def test_a_checkpoint_in_another_default_file_system_is_refused() -> None:
    """The manifests would stay behind on the machine of this driver."""

    def session(default: str) -> Any:
        hadoop = SimpleNamespace(get={"fs.defaultFS": default}.get)
        return SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop))

    check_is_local(session("file:///"), "/data/checkpoint")
    check_is_local(session("hdfs://name:8020"), "file:///data/checkpoint")
    with pytest.raises(BadOption, match=r"lies in hdfs://name:8020, .* Give it as file:///"):
        check_is_local(session("hdfs://name:8020"), "/data/checkpoint")


def test_files_of_a_batch_that_was_not_decided_are_orphans(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("files")), 0, range(50))
    job.do(job.batches(), 0, range(50))
    assert job.seen() == Counter(range(50))
    named = [DeltaTable(str(tmp_path / name)).file_uris() for name in TABLES]
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 2 * sum(map(len, named))
    assert clean_orphans(str(tmp_path / "left"), dry_run=True) == []  # They are too young.


def test_a_manifest_whose_files_were_removed_is_not_committed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("commit of left")), 0, range(50))
    for file in (tmp_path / "right").glob("part-*.parquet"):
        file.unlink()
    for file in (tmp_path / "left").glob("part-*.parquet"):
        file.unlink()  # It has the batch, and may have been rewritten since.
    with pytest.raises(FilesGone, match="it was removed before batch 0 was committed"):
        job.do(job.batches(), 0, range(50))


def test_another_prefix_changes_nothing_for_a_batch_that_is_decided(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("manifest")), 0, range(50))
    topic = job.outputs["topic"]
    options = {**topic.options, "transactionalIdPrefix": f"{topic.options['topic']}-new"}
    job.outputs["topic"] = replace(topic, options=options)
    driver = job.batches()
    job.do(driver, 0, range(50))
    job.do(driver, 1, range(50, 90))
    assert job.seen() == Counter(range(90))


def test_a_batch_that_the_topic_had_as_the_only_sink_is_not_written_again(
    tmp_path: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, broker)
    topic, origin = job.outputs["topic"], Origin(job.query, 0, "run 0")
    monkeypatch.setattr(topic_writer, "origin_of_task", lambda: origin)
    monkeypatch.setattr(topic_writer, "task_index", lambda: 0)
    writer = topic_writer.stream_writer(topic.options, VALUE, overwrite=False)
    rows = pa.RecordBatch.from_pydict({"value": ["0", "1"]})
    sent = pickle.loads(pickle.dumps(writer)).write(iter([rows]))
    topic_writer.stream_writer(topic.options, VALUE, overwrite=False).commit([sent], 0)
    job.outputs = {"left": job.outputs["left"], "topic": topic}
    driver = job.batches()

    def work(task: OutputTask) -> Iterable[Any]:
        rows = pa.array([{"n": n, "text": str(n)} for n in range(2)], to_arrow(ROW))
        values = pa.array([{"value": str(n)} for n in range(2)], to_arrow(VALUE))
        columns = {"row": rows, "to0": pa.array([False, False]), "to1": values}
        return [attempt(task, pa.RecordBatch.from_pydict(columns))]

    driver.run(origin, wide(job.outputs), work)
    job.do(driver, 1, range(2, 50))
    assert job.seen() == Counter(range(50))


def test_transactions_that_timed_out_stop_the_query_by_name(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("manifest")), 0, range(50))
    log = ManifestLog(str(tmp_path / "checkpoint"))
    manifest = log.find(0)
    assert manifest is not None
    said = {name: dict(one) for name, one in manifest.outputs.items()}
    for transaction in said["topic"]["transactions"]:
        transaction[3] += 1  # As if the coordinator had aborted it, with the next epoch.
    log.store(replace(manifest, outputs=said))
    with pytest.raises(TransactionsLost, match=r"Without the file .*0.json the batch is written"):
        job.do(job.batches(), 0, range(50))


def test_what_a_table_would_refuse_is_found_before_the_batch_is_decided(tmp_path: Path) -> None:
    required = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string(), nullable=False)])
    write_deltalake(str(tmp_path / "right"), pa.table({"n": [], "text": []}, schema=required))
    job = Job(tmp_path)

    def work(task: OutputTask) -> Iterable[Any]:
        rows = pa.array([{"n": 1, "text": None}], to_arrow(ROW))
        every = pa.array([True])
        return [
            attempt(task, pa.RecordBatch.from_pydict({"row": rows, "to0": every, "to1": every}))
        ]

    with pytest.raises(SchemaMismatch, match="`text` must not be null"):
        job.batches().run(Origin(job.query, 0, "run"), wide(job.outputs), work)
    assert not list((tmp_path / "checkpoint").rglob("0.json"))
    job.outputs.pop("right")
    job.do(job.batches(), 0, range(3))
    assert job.seen() == Counter(range(3))


def test_rows_with_keys_are_merged_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.outputs = {"left": delta_output(str(tmp_path / "left"), keys=["n"])}
    job.do(job.batches(), 0, range(10))
    with pytest.raises(Crash):
        job.do(job.batches(dies_after("commit of left")), 1, range(5, 15))
    version = DeltaTable(str(tmp_path / "left")).version()
    job.do(job.batches(), 1, range(5, 15))
    assert job.seen() == Counter(range(15))
    assert DeltaTable(str(tmp_path / "left")).version() == version
    assert not list((tmp_path / "left" / "_suwi_staging").glob("*.parquet"))


def test_a_second_driver_is_refused_before_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    job.do(job.batches(), 0, range(10))
    monkeypatch.setattr(manifests, "_locks", {})  # Another process knows none of these.
    with pytest.raises(AnotherProcess, match="another process writes with the checkpoint"):
        job.do(job.batches(), 1, range(10, 20))
    assert job.seen() == Counter(range(10))


def test_other_inputs_or_steps_are_refused_with_the_reason(tmp_path: Path) -> None:
    job = Job(tmp_path)

    def driver(plan: dict[str, list[str]]) -> OutputBatches:
        return OutputBatches(job.outputs, str(tmp_path / "checkpoint"), plan=plan)

    plan = {"inputs": ["topics a"], "steps": ["EventTimeWatermark at"]}
    job.do(driver(plan), 0, range(10))
    driver(plan)
    with pytest.raises(OutputsChanged, match=r"began with the inputs topics a, and .* topics b"):
        driver({**plan, "inputs": ["topics b"]})
    with pytest.raises(OutputsChanged, match=r"stateful steps EventTimeWatermark at.* none"):
        driver({**plan, "steps": []})
    driver({**plan, "steps": ["in other words"], "spark": ["5.0.0"]})


def test_a_checkpoint_that_the_driver_cannot_write_is_refused(tmp_path: Path) -> None:
    outputs = {"left": delta_output(str(tmp_path))}
    with pytest.raises(BadOption, match="'s3://lake/c' is not a directory of this machine"):
        OutputBatches(outputs, "s3://lake/c")
    assert OutputBatches(outputs, f"file://{tmp_path}/c")


def test_rules_hold_for_all_outputs_and_their_letters_are_exactly_once(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    job = Job(tmp_path, broker)
    rules = RowRules({"odd": "dead_letters", "small": "warn", "gone": "drop"}, {})

    def work(task: OutputTask) -> Iterable[Any]:
        rows = pa.array([{"n": n, "text": str(n)} for n in range(4)], to_arrow(ROW))
        marks = pa.array([[], ["odd"], ["small"], ["gone"]], pa.list_(pa.string()))
        values = pa.array([{"value": str(n)} for n in range(4)], to_arrow(VALUE))
        every = pa.array([True] * 4)
        routed = (values if one == "topic" else every for one in job.outputs if one != DEAD_LETTERS)
        columns = {f"to{at}": column for at, column in enumerate(routed)}
        columns |= {"row": rows, BROKEN: marks}
        return [attempt(task, pa.RecordBatch.from_pydict(columns))]

    origin = Origin(job.query, 0, "run")
    for step in ("commit of topic", None):
        driver = OutputBatches(
            job.outputs,
            str(tmp_path / "checkpoint"),
            rules,
            after=dies_after(step) if step else lambda done: None,
        )
        try:
            driver.run(origin, wide(job.outputs), work)
        except Crash:
            continue
    left = DeltaTable(str(tmp_path / "left")).to_pyarrow_table()
    assert left.column("n").to_pylist() == [0, 2]
    topic, dead = (job.outputs[name].options["topic"] for name in ("topic", DEAD_LETTERS))
    assert committed_values(broker.address, topic) == ["0", "2"]
    assert committed_values(broker.address, dead) == ['{"n": 1, "text": "1"}']
    (commit,) = [one for one in DeltaTable(str(tmp_path / "left")).history() if "suwi.rules" in one]
    assert commit["suwi.rules"] == '{"odd": 1, "small": 1, "gone": 1}'
