"""A range of time processed once more, in a real Spark, beside what the stream writes."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("yaml")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from suwi.records.record import Record
from suwi.spark.pipeline.backfill import Backfill, NotForBatches
from suwi.spark.pipeline.program import load_program, stop_all
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.spec import Pipeline
from suwi.spark.pipeline.steps import Variation
from tests.broker_process import BrokerProcess
from tests.spark.streams import finish_all
from tests.spark.topics import fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
LIMIT_S = 300
PLACES = """\
name: places
source: {{servers: "{broker}", topics: {topic}}}
decode: {{json: id BIGINT NOT NULL}}
sql: SELECT id, {text} AS text, _topic, _partition, _offset FROM records{where}
sink: {{delta: {folder}/table{more}}}
dead_letters: drop
checkpoint: {folder}/checkpoint
"""


class Job:
    """A topic with a record for each hour, in two partitions, and the table of it."""

    def __init__(self, spark: "SparkSession", broker: BrokerProcess, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = make_topic(broker.address, partitions=2, word="places")
        self.said: list[str] = []

    def send(self, *ids: int) -> None:
        for one in ids:
            record = Record(value=json.dumps({"id": one}).encode(), timestamp=one * HOUR_MS)
            fill(self.broker.address, self.topic, [record], partition=one % 2)

    def pipeline(
        self, text: str = "'old'", where: str = "", more: str = "", form: str = PLACES
    ) -> Pipeline:
        file = self.folder / "pipeline.yaml"
        given = {"broker": self.broker.address, "topic": self.topic, "folder": self.folder}
        file.write_text(form.format(**given, text=text, where=where, more=more))
        return read_pipeline(str(file))

    def run_once(self, pipeline: Pipeline) -> None:
        program = load_program(pipeline, Variation(once=True))
        finish_all(lambda: program.start(self.spark))

    def backfill(self, pipeline: Pipeline, first: int, end: int) -> Backfill:
        job = Backfill(pipeline, first * HOUR_MS, end * HOUR_MS)
        assert job.run(self.spark, 5, self.said.append) == 0, self.said
        return job

    def rows(self) -> list[tuple[Any, ...]]:
        found = DeltaTable(str(self.folder / "table")).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["text"]) for row in found)


@pytest.fixture
def job(spark: "SparkSession", broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def expected(ids: range, new: range) -> list[tuple[int, str]]:
    return [(one, "new" if one in new else "old") for one in ids]


def wait_for(is_there: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not is_there():
        assert time.monotonic() < end_s, "it did not come in time"
        time.sleep(0.1)


def test_a_backfill_replaces_the_rows_of_its_range_however_often_it_is_run(job: Job) -> None:
    job.send(*range(8))
    job.run_once(job.pipeline())
    table = DeltaTable(str(job.folder / "table"))
    job.send(8, 9)  # Not read by the stream yet: it will write them itself.
    for _ in range(2):
        done = job.backfill(job.pipeline("'new'"), 3, 10)
        assert (done.doubts, done.offsets, done.later) == ([], 5, 2)
        assert job.rows() == expected(range(8), range(3, 8))
    job.backfill(job.pipeline("'new'", " WHERE id > 4"), 3, 6)
    assert [one for one, _ in job.rows()] == [0, 1, 2, 5, 6, 7]
    assert DeltaTable(str(job.folder / "table")).version() == table.version() + 3
    job.run_once(job.pipeline())
    assert [one for one, _ in job.rows()] == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_backfill_beside_a_running_query_loses_no_row_and_doubles_none(job: Job) -> None:
    job.send(*range(6))
    queries = load_program(job.pipeline()).start(job.spark)
    try:
        wait_for(lambda: Backfill(job.pipeline(), 0, 6 * HOUR_MS).offsets == 6)
        for low in (6, 8):
            job.send(low, low + 1)  # The query commits them before, while or after it is replaced.
            job.backfill(job.pipeline("'new'"), 1, 5)
        job.send(10)
        wait_for(lambda: len(job.rows()) >= 11)
        assert all(query.exception() is None for query in queries)
        assert job.rows() == expected(range(11), range(1, 5))
    finally:
        stop_all(queries)
    job.run_once(job.pipeline())
    assert job.rows() == expected(range(11), range(1, 5))


def test_rows_that_are_not_of_the_range_are_refused_and_nothing_is_changed(job: Job) -> None:
    job.send(*range(4))
    job.run_once(job.pipeline())
    moved = PLACES.replace("_offset FROM", "_offset + 1000 AS _offset FROM")
    failing = Backfill(job.pipeline(form=moved), 1 * HOUR_MS, 3 * HOUR_MS)
    assert failing.run(job.spark, 0, job.said.append) == 1
    assert "rows that do not meet the condition" in job.said[-1]
    assert job.rows() == expected(range(4), range(0))


def test_a_table_with_keys_and_an_order_is_filled_by_its_keys(job: Job) -> None:
    job.send(*range(6))
    keys = ", keys: [id], order_by: _offset"
    job.run_once(job.pipeline(more=keys))
    for _ in range(2):
        assert job.backfill(job.pipeline("'new'", more=keys), 2, 4).doubts == []
        assert job.rows() == expected(range(6), range(2, 4))


def test_two_tables_of_one_read_are_both_replaced(job: Job) -> None:
    job.send(*range(4))
    several = PLACES.replace(
        "sink: {{delta: {folder}/table{more}}}",
        "outputs:\n  all: {{delta: {folder}/table}}\n"
        "  even: {{delta: {folder}/even, when: id % 2 = 0}}",
    )
    job.run_once(job.pipeline(form=several))
    for _ in range(2):
        done = job.backfill(job.pipeline("'new'", form=several), 1, 2)
        assert (done.replaced, done.doubts) == (["all", "even"], [])
        assert job.rows() == expected(range(4), range(1, 2))
        even = DeltaTable(str(job.folder / "even")).to_pyarrow_table().column("id").to_pylist()
        assert sorted(even) == [0, 2]


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (("_offset FROM", "_offset AS at FROM"), "it has neither keys nor the columns _topic, "),
        (("{more}", ", keys: [id]"), "would replace newer ones: there is no order_by"),
        (
            ("{more}", ", keys: [id], order_by: _offset, delete_when: source.id = 3"),
            "rows that were deleted after the range would be there again",
        ),
        (("delta: {folder}/table", "parquet: {folder}/files"), "files are only added"),
        (("drop", "{{topic: bad}}"), "topic bad: dead letters would be there twice"),
        (
            ("sql:", "watermark: {{column: _timestamp, delay: 1 hour}}\nsql:"),
            "rows depend on records outside of the range",
        ),
    ],
)
def test_what_cannot_be_replaced_is_said(job: Job, change: tuple[str, str], doubt: str) -> None:
    job.send(0)
    form = PLACES.replace(*change)
    pipeline = job.pipeline(form=form)
    assert Backfill(pipeline, 0, HOUR_MS).doubts == []  # It has not run yet.
    if "bad" not in form:
        job.run_once(pipeline)
    else:
        job.run_once(job.pipeline())
    (found,) = Backfill(pipeline, 0, HOUR_MS).doubts
    assert doubt in found


def test_results_of_all_records_cannot_be_made_from_a_part(job: Job) -> None:
    with pytest.raises(NotForBatches, match="mode complete"):
        Backfill(job.pipeline(more=", mode: complete"), 0, 1)
