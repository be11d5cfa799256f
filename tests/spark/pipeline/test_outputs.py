"""Pipelines with `inputs` and `outputs`: the file, and one query in a real Spark."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("yaml")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException

from suwi.spark.decoders.decode import decode
from suwi.spark.output_batches import OutputBatches
from suwi.spark.pipeline.backfill import Backfill
from suwi.spark.pipeline.deep_check import check_deeply, place_of, take_sample
from suwi.spark.pipeline.nodes import BadPipeline
from suwi.spark.pipeline.plan import check_checkpoint, plan_lines
from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.script import script
from suwi.spark.pipeline.spec import Pipeline, TableSource
from suwi.spark.pipeline.steps import Variation
from tests.broker_process import BrokerProcess
from tests.spark.streams import ReadCounter, lose_last_commit
from tests.spark.topics import committed_values, fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = """\
name: orders
source:
  servers: 127.0.0.1:9092
  topics: orders
decode:
  json: id BIGINT NOT NULL, cents BIGINT
outputs:
  paid:
    delta: /lake/paid
    when: cents > 0
    partition_by: day
    select: id, cents, date(_timestamp) AS day
  rest:
    topic: rest
    when: cents <= 0
    select: to_json(struct(*)) AS value
dead_letters:
  topic: orders-bad
checkpoint: /lake/checkpoint
"""
JOINED = """\
name: joined
inputs:
  orders:
    servers: 127.0.0.1:9092
    topics: orders
    decode: {json: "id BIGINT, at TIMESTAMP"}
    watermark: {column: at, delay: 10 minutes}
    deduplicate: id
  paid:
    delta: /lake/paid
    watermark: {column: at, delay: 10 minutes}
tables:
  shops: /lake/shops
sql: SELECT orders.id FROM orders JOIN paid USING (id)
outputs:
  both: {delta: /lake/both}
dead_letters: drop
checkpoint: /lake/checkpoint
"""


def read(folder: Path, text: str) -> Pipeline:
    (folder / "pipeline.yaml").write_text(text)
    return read_pipeline(str(folder / "pipeline.yaml"), {})


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(BadPipeline) as refused:
        read(folder, text)
    return [f"{line}: {text}" for line, text in refused.value.problems]


def test_several_outputs_and_inputs_are_read_by_name(tmp_path: Path) -> None:
    orders = read(tmp_path, ORDERS)
    assert orders.is_joint
    assert list(orders.inputs) == ["records"]
    assert list(orders.sinks) == ["outputs.paid", "outputs.rest", "dead_letters"]
    joined = read(tmp_path, JOINED)
    assert list(joined.inputs) == ["orders", "paid"]
    assert isinstance(joined.inputs["paid"].source, TableSource)
    assert joined.inputs["orders"].deduplicate


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: orders", "name: orders\nsink: {delta: /x}", "2: sink: either sink or outputs, not"),
        ("  paid:\n", "  dead_letters:\n", "8: outputs.dead_letters: a name of letters, digits"),
        ("when: cents > 0", "wehn: cents > 0", "10: there is no 'wehn' in outputs.paid: did you"),
        ("delta: /lake/paid", "parquet: /lake", "9: outputs.paid.parquet: cannot be committed to"),
        ("    when: cents > 0", "    mode: update", "10: outputs.paid.mode: stands beside outputs"),
        ("name: orders", "name: orders\nmode: update", "10: outputs.paid.delta: mode update needs"),
        ("name: orders", "name: orders\nmode: complete", "2: mode: 'complete': append, update"),
        (ORDERS[ORDERS.index("outputs:") :], "outputs: {}\n", "7: outputs: give at least one, by"),
    ],
)
def test_mistakes_in_outputs_are_told_with_their_lines(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert any(line.startswith(said) for line in mistakes(tmp_path, ORDERS.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("inputs:\n", "decode: raw\ninputs:\n", "2: decode: each of the inputs has its own"),
        ("  orders:\n", "  or-ders:\n", "3: inputs.or-ders: a name for the SQL"),
        (
            "outputs:\n  both: {delta: /lake/both}",
            "sink: {delta: /x}",
            "2: inputs: go with outputs",
        ),
        (
            "sql: SELECT orders.id FROM orders JOIN paid USING (id)\n",
            "",
            "2: inputs: give sql or p",
        ),
        ("  shops: /lake", "  paid: /lake", "13: tables: 'paid': a name for the SQL, and not ord"),
        ("    decode: {json", "    decoed: {json", "6: there is no 'decoed' in inputs.orders: did"),
    ],
)
def test_mistakes_in_inputs_are_told_with_their_lines(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    found = mistakes(tmp_path, JOINED.replace(old, new, 1))
    assert any(line.startswith(said) for line in found), found


def test_the_plan_says_what_is_read_once_and_where_it_goes(tmp_path: Path) -> None:
    assert list(plan_lines(read(tmp_path, ORDERS))) == [
        "one query, with the checkpoint /lake/checkpoint",
        "  reads   records: topic orders, json",
        "  writes  paid: /lake/paid, when cents > 0",
        "  writes  rest: topic rest, when cents <= 0",
        "  writes  dead_letters: topic orders-bad, what cannot be decoded",
        "what needs state of its own is a pipeline of its own, which reads a table of this one",
    ]
    assert list(plan_lines(read(tmp_path, JOINED)))[1:5] == [
        "  reads   orders: topic orders, json, watermark at 10 minutes, each id once",
        "  reads   paid: /lake/paid, watermark at 10 minutes",
        "  joins   shops: /lake/shops, read anew for each batch",
        "  then    sql",
    ]
    lost = JOINED.replace("dead_letters: drop", "dead_letters: {topic: orders-bad}")
    assert [line for line in plan_lines(read(tmp_path, lost)) if line.startswith("  reads ")] == [
        "  reads   orders: topic orders, json, watermark at 10 minutes, each id once",
        "  reads   paid: /lake/paid, watermark at 10 minutes",
    ]


def test_a_checkpoint_with_other_inputs_or_out_of_reach_is_refused(tmp_path: Path) -> None:
    here = ORDERS.replace("/lake/", f"{tmp_path}/")
    assert check_checkpoint(read(tmp_path, here)) == []
    record = tmp_path / "checkpoint" / "suwi-outputs" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"first": "paid", "plan": {"inputs": ["topics orders"], "steps": []}}')
    assert check_checkpoint(read(tmp_path, here)) == []
    ((line, text),) = check_checkpoint(read(tmp_path, here.replace("topics: o", "topics: other-o")))
    assert line == 19
    assert text.startswith("checkpoint: the checkpoint began with the inputs topics orders, and")
    (tmp_path / "checkpoint" / "offsets").mkdir()
    (tmp_path / "checkpoint" / "offsets" / "0").write_text('v1\n{}\n{"orders":{"0":1}}')
    (record.parent / "0.json").write_text(
        '{"batch": 0, "query": "q", "run": "r", "version": 1, "outputs": {"old": {"to": "/old"}}}'
    )
    ((_, text),) = check_checkpoint(read(tmp_path, here))
    assert text.endswith(
        "writes output old to /old: run once more with that output, then change it"
    )
    away = ORDERS.replace("/lake/checkpoint", "s3://lake/checkpoint")
    ((_, text),) = check_checkpoint(read(tmp_path, away))
    assert "is not a directory of this machine" in text


def test_what_spark_refuses_in_an_input_has_the_line_of_its_step(tmp_path: Path) -> None:
    """Earlier it had the line of the SQL, or was blamed on the first of the inputs."""
    joined = read(tmp_path, JOINED)
    error = AnalysisException("[UNRESOLVED_COLUMN] A column with name `at` cannot be resolved.")
    error.add_note("paid")
    line, text = place_of(joined, error)
    assert (line, text.partition(":")[0]) == (11, "inputs.paid.watermark")
    error = AnalysisException("there is no Delta table at /lake/paid")
    error.add_note("paid")
    assert place_of(joined, error) == (10, "inputs.paid: there is no Delta table at /lake/paid")


def test_it_is_shown_as_python(tmp_path: Path) -> None:
    found = script(read(tmp_path, ORDERS))
    compile(found, "orders.py", "exec")
    assert "good = decode_together(" in found
    assert (
        """\
        to_outputs(
            good,
            {
                "paid": delta_output(
                    "/lake/paid",
                    when="cents > 0",
                    select="id, cents, date(_timestamp) AS day",
                    partition_by=["day"],
                ),
                "rest": topic_output(
"""
        in found
    )
    joined = script(read(tmp_path, JOINED))
    compile(joined, "joined.py", "exec")
    assert "orders, orders_bad = decode(" in joined
    assert 'paid.createOrReplaceTempView("paid")' in joined
    assert "read_once" not in joined  # Nobody wants the bad ones.
    lost = JOINED.replace("dead_letters: drop", "dead_letters: {topic: orders-bad}")
    assert "read_once=True" in script(read(tmp_path, lost))


# -- in Spark --------------------------------------------------------------------------------------


class Job:
    def __init__(self, spark: "SparkSession", broker: BrokerProcess, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = make_topic(broker.address, partitions=2, word="orders")
        self.rest = make_topic(broker.address, word="rest")
        self.bad = make_topic(broker.address, word="bad")
        self.said: list[str] = []

    def pipeline(self, text: str) -> Pipeline:
        names = {"topics: orders": f"topics: {self.topic}", "topic: rest": f"topic: {self.rest}"}
        names |= {"orders-bad": self.bad, "127.0.0.1:9092": self.broker.address}
        for old, new in {**names, "/lake/": f"{self.folder}/"}.items():
            text = text.replace(old, new)
        return read(self.folder, text)

    def send(self, *values: Any) -> None:
        texts = [one if isinstance(one, str) else json.dumps(one) for one in values]
        fill(self.broker.address, self.topic, [text.encode() for text in texts])

    def run(self, text: str) -> int:
        pipeline = self.pipeline(text)
        program = load_program(pipeline, Variation(once=True))
        settings = RunSettings(retries=5, look_every_s=0.05)
        lags = lags_of(pipeline)
        self.runner = Runner(pipeline, program, self.spark, lags, settings, say=self.said.append)
        return asyncio.run(self.runner.run())

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.folder / table)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: json.dumps(row, default=str))

    def values(self, topic: str) -> list[str]:
        return committed_values(self.broker.address, topic)


@pytest.fixture
def job(spark: "SparkSession", broker: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def test_one_query_writes_all_outputs_and_dead_letters(job: Job) -> None:
    job.send({"id": 1, "cents": 5}, {"id": 2, "cents": 0}, "nonsense", {"id": 3, "cents": 7})
    assert check_deeply(job.pipeline(ORDERS), job.spark) == []
    sample = take_sample(job.pipeline(ORDERS), job.spark, 10)
    assert {name: len(rows) for name, rows in sample.rows.items()} == {"paid": 2, "rest": 1}
    assert job.run(ORDERS) == 0, job.said
    assert [row["id"] for row in job.rows("paid")] == [1, 3]
    assert set(job.rows("paid")[0]) == {"id", "cents", "day"}
    assert json.loads(*job.values(job.rest))["id"] == 2
    assert job.values(job.bad) == ["nonsense"]
    (watch,) = job.runner.watches
    assert watch.rows == 4  # Read once.
    assert watch.lag_total == 0
    assert watch.about.endswith(f"{job.folder}/paid, topic {job.rest}, topic {job.bad}")
    # Other queries of the session have Spark's own default.
    assert job.spark.conf.get("spark.sql.adaptive.streaming.stateless.enabled", None) is None
    lose_last_commit(job.folder / "checkpoint")
    job.send({"id": 4, "cents": 0})
    assert job.run(ORDERS) == 0, job.said
    assert [row["id"] for row in job.rows("paid")] == [1, 3]
    assert len(job.values(job.rest)) == 2
    assert job.values(job.bad) == ["nonsense"]


CHANCE = """\
name: chance
source: {servers: "127.0.0.1:9092", topics: orders}
decode: {json: id BIGINT NOT NULL}
sql: SELECT id, rand() AS r FROM records
outputs:
  left: {delta: /lake/left, when: r < 0.3, select: id}
  right: {delta: /lake/right, when: r >= 0.3 AND r < 0.6, select: id}
  rest: {topic: rest, when: r >= 0.6, select: string(id) AS value}
dead_letters: {topic: orders-bad}
checkpoint: /lake/checkpoint
"""


@pytest.mark.slow
def test_routing_by_chance_sends_each_row_to_one_output_also_after_replays(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = ReadCounter(monkeypatch, job.folder / "reads")
    sent = 0
    for _ in range(3):
        job.send(*({"id": n} for n in range(sent, sent + 50)), f"bad {sent}")
        sent += 50
        assert job.run(CHANCE) == 0, job.said
        assert reads.take() == 51
        assert job.runner.watches[0].rows == 51
        lose_last_commit(job.folder / "checkpoint")  # The next run replays the last batch.
    assert job.run(CHANCE) == 0, job.said
    assert reads.take() == 0
    found = [row["id"] for table in ("left", "right") for row in job.rows(table)]
    found += [int(value) for value in job.values(job.rest)]
    assert Counter(found) == Counter(range(sent))
    assert job.values(job.bad) == ["bad 0", "bad 100", "bad 50"]
    (watch,) = job.runner.watches
    assert watch.lag_total == 0


class Crash(Exception):
    """The driver ends here."""


@pytest.mark.slow
def test_a_driver_that_dies_at_any_step_reads_once_more_only_before_the_manifest(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, left = ReadCounter(monkeypatch, job.folder / "reads"), [""]

    def dies(step: str) -> None:
        if step == left[0]:
            left[0] = ""
            raise Crash(f"after {step}")

    monkeypatch.setattr("suwi.spark.outputs.OutputBatches", partial(OutputBatches, after=dies))
    steps = ["files", "manifest", "commit of dead_letters", "commit of left"]
    for number, step in enumerate(steps):
        job.send(*({"id": n} for n in range(50 * number, 50 * number + 50)), f"bad {number}")
        left[0] = step
        assert job.run(CHANCE) == 0, job.said
        assert left == [""]
        assert reads.take() == 51 * (2 if step == "files" else 1)
    found = [row["id"] for table in ("left", "right") for row in job.rows(table)]
    found += [int(value) for value in job.values(job.rest)]
    assert Counter(found) == Counter(range(50 * len(steps)))
    assert job.values(job.bad) == [f"bad {number}" for number in range(len(steps))]


ADAPTIVE = "spark.sql.adaptive.enabled"
THROUGH = """\
name: through
source: {servers: "127.0.0.1:9092", topics: orders}
decode: {json: "id BIGINT NOT NULL, at TIMESTAMP"}
outputs: {all: {delta: /lake/all}}
dead_letters: {topic: orders-bad}
checkpoint: /lake/checkpoint"""
STEPS = {
    "sql": ["sql: SELECT id, at FROM records WHERE id > 0"],
    "a watermark": ["watermark: {column: at, delay: 1 minute}"],
    "duplicates": ["watermark: {column: at, delay: 1 minute}", "deduplicate: id"],
    "a table": [
        "tables: {shops: /lake/shops}",
        "sql: SELECT * FROM records JOIN shops ON id = shop",
    ],
    "a window": [
        "watermark: {column: at, delay: 1 minute}",
        "sql: SELECT window.start, max(id) AS id FROM records GROUP BY window(at, '1 minute')",
    ],
    "itself": [
        "watermark: {column: at, delay: 1 minute}",
        "sql: SELECT a.id FROM records a JOIN records b ON a.id = b.id AND a.at = b.at",
    ],
}


@pytest.fixture
def set_adaptive(spark: "SparkSession") -> Iterator[Callable[[str], None]]:
    before = spark.conf.get(ADAPTIVE)
    yield partial(spark.conf.set, ADAPTIVE)
    spark.conf.set(ADAPTIVE, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "adaptive"),
    [*((one, "true") for one in STEPS), ("sql", "false"), ("a table", "false")],
)
def test_rows_and_dead_letters_come_from_one_read_whatever_lies_between(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    set_adaptive: Callable[[str], None],
    steps: str,
    adaptive: str,
) -> None:
    shops(job, a=1, b=2)
    reads = ReadCounter(monkeypatch, job.folder / "reads")
    set_adaptive(adaptive)
    text = "\n".join([THROUGH, *STEPS[steps], ""])
    for hour in range(2):
        at = f"2026-01-01T0{hour}:00:00Z"
        job.send({"id": 1, "at": at}, {"id": 2, "at": at}, f"bad {hour}")
        assert job.run(text) == 0, job.said
        assert reads.take() == 3
        assert job.runner.watches[0].rows == 3
    assert {row["id"] for row in job.rows("all")} <= {1, 2}
    assert job.rows("all")
    assert job.values(job.bad) == ["bad 0", "bad 1"]


@pytest.mark.slow
def test_a_checkpoint_whose_batches_read_twice_goes_on_with_one_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_twice(rows: Any, *, read_once: bool, **how: Any) -> Any:
        return decode(rows, **how)

    text = "\n".join([THROUGH, *STEPS["duplicates"], ""])
    at = "2026-01-01T00:00:00Z"
    with monkeypatch.context() as patch:
        patch.setattr("suwi.spark.decode", read_twice)
        job.send({"id": 1, "at": at}, {"id": 2, "at": at}, "bad 0")
        assert job.run(text) == 0, job.said
    job.send({"id": 2, "at": at}, {"id": 3, "at": at}, "bad 1")
    assert job.run(text) == 0, job.runner.reason
    assert sorted(row["id"] for row in job.rows("all")) == [1, 2, 3]
    assert job.values(job.bad) == ["bad 0", "bad 1"]


SHOPS = """\
name: shops
source: {servers: "127.0.0.1:9092", topics: orders}
decode: {json: "id BIGINT NOT NULL, shop BIGINT, at TIMESTAMP"}
watermark: {column: at, delay: 1 minute}
deduplicate: id
tables:
  shops: /lake/shops
sql: SELECT id, name FROM records LEFT JOIN shops USING (shop)
outputs:
  all: {delta: /lake/all}
  known: {delta: /lake/known, when: name IS NOT NULL}
dead_letters: {topic: orders-bad}
checkpoint: /lake/checkpoint
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def shops(job: Job, **names: int) -> None:
    import pyarrow as pa

    rows = [{"shop": number, "name": name} for name, number in names.items()]
    write_deltalake(str(job.folder / "shops"), pa.Table.from_pylist(rows), mode="overwrite")


@pytest.mark.slow
def test_a_table_is_read_anew_for_each_batch_and_state_outlives_a_replay(job: Job) -> None:
    shops(job, a=1)
    at = "2026-01-01T00:00:00Z"
    job.send({"id": 1, "shop": 1, "at": at}, {"id": 2, "shop": 2, "at": at}, "nonsense")
    pipeline = job.pipeline(SHOPS)
    (query,) = load_program(pipeline).start(job.spark)
    assert query is not None
    try:
        wait_until(lambda: len(job.rows("all")) == 2)
        assert job.rows("all") == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
        shops(job, a=1, b=2)
        job.send({"id": 3, "shop": 2, "at": at}, {"id": 1, "shop": 2, "at": at})
        wait_until(lambda: len(job.rows("known")) == 2)
    finally:
        query.stop()
    assert job.rows("known") == [{"id": 1, "name": "a"}, {"id": 3, "name": "b"}]
    lose_last_commit(job.folder / "checkpoint")
    job.send({"id": 3, "shop": 1, "at": at}, {"id": 4, "shop": 1, "at": at})
    assert job.run(SHOPS) == 0, job.said
    assert [row["id"] for row in job.rows("all")] == [1, 2, 3, 4]
    assert job.values(job.bad) == ["nonsense"]
    found = sorted((job.folder / "checkpoint" / "suwi-outputs").glob("[0-9]*.json"))
    assert [json.loads(one.read_text())["tables"] for one in found[:2]] == [
        {"shops": 0},
        {"shops": 1},
    ]


@pytest.mark.slow
def test_other_steps_under_a_checkpoint_are_refused_with_the_reason(job: Job) -> None:
    shops(job, a=1)
    job.send({"id": 1, "shop": 1, "at": "2026-01-01T00:00:00Z"})
    assert job.run(SHOPS) == 0, job.said
    stateless = SHOPS.replace("deduplicate: id\n", "")
    ((_, text),) = check_deeply(job.pipeline(stateless), job.spark)
    assert text.startswith("checkpoint: the checkpoint began with the stateful steps ")
    assert job.run(stateless) == 1
    assert "outputs may" in job.runner.reason
    other = SHOPS.replace("when: name IS NOT NULL", "when: name IS NULL").replace("known", "new")
    assert job.run(other) == 0, job.runner.reason


JOIN = """\
name: join
inputs:
  orders:
    servers: 127.0.0.1:9092
    topics: orders
    decode: {json: "id BIGINT, at TIMESTAMP"}
    watermark: {column: at, delay: 1 minute}
  paid:
    delta: /lake/paid
    watermark: {column: at, delay: 1 minute}
sql: |
  SELECT o.id, p.cents FROM orders o JOIN paid p
  ON o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR
outputs:
  small: {delta: /lake/small, when: cents < 10}
  large: {delta: /lake/large, when: cents >= 10}
dead_letters: drop
checkpoint: /lake/checkpoint
"""


@pytest.mark.slow
def test_streams_of_two_inputs_are_joined_into_two_tables(job: Job) -> None:
    from datetime import UTC, datetime

    import pyarrow as pa

    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"id": n, "cents": 4 * n, "at": at} for n in range(1, 5)]
    table = pa.Table.from_pylist(rows)
    write_deltalake(str(job.folder / "paid"), table)
    job.send(*({"id": n, "at": at.isoformat()} for n in range(2, 6)))
    assert job.run(JOIN) == 0, job.said
    assert job.rows("small") == [{"id": 2, "cents": 8}]
    assert [row["id"] for row in job.rows("large")] == [3, 4]
    (watch,) = job.runner.watches
    assert watch.lag_total == 0


RULED = ORDERS.replace(
    "dead_letters:\n",
    """\
expect:
  small: {condition: cents < 100, otherwise: dead_letters}
  even: id % 2 = 0
dead_letters:
""",
)


def test_rules_take_rows_before_they_are_routed_and_count_no_dead_letters(job: Job) -> None:
    job.send({"id": 1, "cents": 5}, {"id": 2, "cents": 500}, {"id": 4, "cents": 0}, "nonsense")
    assert job.run(RULED) == 0, job.said
    assert [row["id"] for row in job.rows("paid")] == [1]
    rest = json.loads(*job.values(job.rest))
    assert (rest["id"], [name for name in rest if name.startswith("__")]) == (4, [])
    nonsense, letter = job.values(job.bad)
    assert nonsense == "nonsense"
    assert json.loads(letter)["id"] == 2
    (watch,) = job.runner.watches
    assert +watch.broken == {"small": 1, "even": 1}


WINDOWS = """\
name: windows
source: {servers: "127.0.0.1:9092", topics: orders}
decode: {json: "id BIGINT NOT NULL, cents BIGINT, at TIMESTAMP"}
watermark: {column: at, delay: 1 hour}
mode: update
sql: |
  SELECT window.start AS start, sum(cents) AS cents FROM records GROUP BY window(at, '1 minute')
outputs:
  minutes: {delta: /lake/minutes, keys: start}
  alarms: {topic: rest, when: cents > 10, select: string(cents) AS value}
dead_letters: drop
checkpoint: /lake/checkpoint
"""


def test_rows_that_changed_go_to_all_outputs(job: Job) -> None:
    for cents in (4, 8):
        job.send({"id": 1, "cents": cents, "at": "2026-01-01T00:00:00Z"})
        assert job.run(WINDOWS) == 0, job.said
    assert [row["cents"] for row in job.rows("minutes")] == [12]
    assert job.values(job.rest) == ["12"]


def test_a_range_of_time_is_filled_into_all_tables_once(job: Job) -> None:
    job.send({"id": 1, "cents": 5}, {"id": 2, "cents": 0}, "nonsense")
    for _ in range(2):
        backfill = Backfill(job.pipeline(ORDERS), 0, 4_000_000_000_000)
        assert backfill.run(job.spark, 0, job.said.append) == 0, job.said
    assert [row["id"] for row in job.rows("paid")] == [1]
    assert len(job.values(job.rest)) == 2  # At least once: a batch has no number.


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("when: cents > 0", "when: cent > 0", 10),
        ("select: id, cents,", "select: id, cent,", 12),
        ("select: id, cents,", "select: |\n      id,\n      cent,", 14),
    ],
)
def test_what_spark_refuses_in_an_output_is_told_with_its_line(
    job: Job, old: str, new: str, line: int
) -> None:
    ((found, text),) = check_deeply(job.pipeline(ORDERS.replace(old, new)), job.spark)
    assert found == line
    assert text.startswith("outputs.paid: ")
    assert "`cent`" in text


def test_an_output_with_state_of_its_own_is_refused(job: Job) -> None:
    counted = """\
name: counted
source: {servers: "127.0.0.1:9092", topics: orders}
decode: raw
outputs:
  counted: {delta: /lake/counted, select: count(*) AS n}
checkpoint: /lake/checkpoint
"""
    assert job.run(counted) == 1
    assert "what needs state of its own is a query of its own" in job.runner.reason
