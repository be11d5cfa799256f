"""The medallion job: topic → bronze → silver → gold, equal to what plain Python computes."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import suwi.spark
from chaos.processes import Process
from suwi.records.record import Record
from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.script import script
from suwi.spark.pipeline.steps import Variation
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from tests.broker_process import SOURCE, BrokerProcess
from tests.spark.streams import NOW, finish_all
from tests.spark.test_examples import EXAMPLES, load, rows
from tests.spark.topics import committed_values, fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 600
_PATIENCE_S = 1_800
LAYERS = ("bronze", "silver", "gold")
OF_PAYMENTS = ("paid", "countries")
LOCAL = ("--conf", "spark.connect.grpc.binding.address=127.0.0.1")


@pytest.fixture
def lake(tmp_path: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with products, and the names of this test's topics in the examples' places."""
    monkeypatch.setenv("SUWI_BROKER", broker.address)
    monkeypatch.setenv("LAKE", str(tmp_path))
    load("medallion/generate").write_products(str(tmp_path / "products"))
    return tmp_path


def make_topics(broker: BrokerProcess) -> tuple[str, str]:
    return make_topic(broker.address, word="orders", partitions=3), make_topic(broker.address)


def send(broker: BrokerProcess, topic: str, records: list[dict[str, Any]]) -> list[str]:
    for partition in range(3):
        mine = records[partition::3]
        made = [Record(key=one["key"].encode(), value=one["value"].encode()) for one in mine]
        fill(broker.address, topic, made, partition=partition)
    return [one["value"] for one in records]


def in_two_parts(
    broker: BrokerProcess, lake: Path, topic: str, bad: str, run: Callable[[], None]
) -> None:
    """The second half comes when the layers have done the first: each goes on where it was."""
    example = load("medallion/generate")
    records = list(example.orders(COUNT, 1))
    values: list[str] = []
    for part in (records[: COUNT // 2], records[COUNT // 2 :]):
        values += send(broker, topic, part)
        run()
    expected = load("medallion/expected").Expected(values, example.PRODUCTS)
    assert len(expected.bronze) > len(expected.silver) > COUNT * 0.7
    assert len(expected.bad) > 20
    tables = [rows(lake / layer) for layer in LAYERS]
    dead = [(one.value or b"").decode() for one in broker.stored_records(bad)]
    assert expected.differences(*tables, dead) == []
    assert len(dead) == len(expected.bad)


def test_a_difference_is_found() -> None:
    example = load("medallion/generate")
    values = [str(one["value"]) for one in example.orders(200, 1)]
    expected = load("medallion/expected").Expected(values, example.PRODUCTS)
    bronze = [{"id": number} for number in expected.bronze]
    silver = [
        {"id": number, "category": category, "cents": cents, "country": country}
        for number, (category, cents, country) in expected.silver.items()
    ]
    gold = [
        {"quarter": quarter, "category": category, "orders": n, "pieces": pieces, "cents": cents}
        for (quarter, category), (n, pieces, cents) in expected.gold.items()
    ]
    assert expected.differences(bronze, silver, gold, expected.bad * 2) == []
    assert len(expected.differences(bronze[1:], silver[1:], gold[1:], expected.bad[1:])) == 4
    doubled = expected.differences(
        [*bronze, bronze[0]], [*silver, silver[0]], [*gold, gold[0]], expected.bad
    )
    assert len(doubled) == 3
    assert len(expected.differences(bronze, silver, [{**gold[0], "cents": 1}, *gold[1:]], [])) == 2


def test_a_difference_of_payments_is_found() -> None:
    example = load("medallion/generate")
    values, payments = (
        [str(one["value"]) for one in records(400, 1)]
        for records in (example.orders, example.payments)
    )
    expected = load("medallion/expected").Expected(values, example.PRODUCTS).pay(payments)
    paid = [
        {"id": number, "category": category, "cents": cents, "payment": payment}
        for number, (category, cents, payment) in expected.rows.items()
    ]
    countries = [{"country": name, "cents": cents} for name, cents in expected.countries.items()]
    letters = [json.dumps({"payment": one}) for one in expected.bad + expected.of_another_sum]
    assert expected.differences(paid, countries, letters) == []
    assert len(expected.differences(paid[1:], countries[1:], letters[1:])) == 3
    doubled = [[*rows, rows[0]] for rows in (paid, countries)]
    assert len(expected.differences(*doubled, [*letters, letters[0]])) == 3


@pytest.mark.slow
def test_the_layers_in_python(spark: "SparkSession", broker: BrokerProcess, lake: Path) -> None:
    topic, bad = make_topics(broker)
    layers = load_with_topics("medallion/medallion", topic, bad)

    def run() -> None:
        finish_all(lambda: layers.bronze(spark, broker.address, str(lake), NOW))
        finish_all(lambda: [layers.silver(spark, str(lake), NOW)])
        finish_all(lambda: [layers.gold(spark, str(lake), NOW)])

    in_two_parts(broker, lake, topic, bad, run)


def load_with_topics(path: str, topic: str, bad: str) -> ModuleType:
    """The example, with this test's topics instead of its own: all tests share a broker."""
    text = (EXAMPLES / f"{path}.py").read_text()
    module = ModuleType(path.replace("/", "_"))
    text = text.replace('"orders-bad"', f'"{bad}"')
    text = text.replace('servers, "orders"', f'servers, "{topic}"')
    exec(compile(text, path, "exec"), module.__dict__)
    return module


@pytest.mark.slow
def test_the_layers_as_pipelines_that_build_on_each_other(
    spark: "SparkSession", broker: BrokerProcess, lake: Path, tmp_path_factory: Any
) -> None:
    topic, bad = make_topics(broker)
    folder = tmp_path_factory.mktemp("pipelines")
    copy_pipelines(folder, topic, bad)
    bronze = (folder / "bronze.yaml").read_text()
    schemas = [bronze.replace(", express: BOOLEAN", ""), bronze]
    assert schemas[0] != schemas[1]

    def run() -> None:
        (folder / "bronze.yaml").write_text(schemas.pop(0))
        for layer in LAYERS:
            run_pipeline(spark, folder / f"{layer}.yaml")

    in_two_parts(broker, lake, topic, bad, run)
    # The table got the new field with the first batch that has it.
    shipped = [row["shipping"] for row in rows(lake / "bronze") if row["shipping"]]
    assert shipped
    assert all(one["express"] in (True, False) for one in shipped)


@pytest.mark.slow
@pytest.mark.timeout(2_700)
def test_every_row_is_in_each_table_once_after_a_kill_and_a_restart(
    broker: BrokerProcess, lake: Path, tmp_path_factory: Any
) -> None:
    """All five pipelines in one process, as people run them."""
    (topic, bad), payments = make_topics(broker), make_topic(broker.address, partitions=3)
    unpaid = make_topic(broker.address)
    folder = tmp_path_factory.mktemp("pipelines")
    copy_pipelines(folder, topic, bad)
    copy_pipelines(folder, payments, unpaid, of="payments", layers=OF_PAYMENTS)
    example, arguments = load("medallion/generate"), ["-m", "suwi", "pipeline", "run", str(folder)]
    halves = [0, COUNT // 2]
    values: list[str] = []
    paid: list[str] = []
    for start in halves:
        values += send(broker, topic, list(example.orders(COUNT // 2, 1, start)))
        paid += send(broker, payments, list(example.payments(COUNT // 2, 1, start)))
        run = Process([*arguments, *(["--once"] if start else [])], lake / "said")
        if start == 0:
            # Somewhere in the first batch of the join: what is before it may be anywhere.
            while not list((lake / "paid").glob("_delta_log/*1.json")):
                assert run.wait(0.2) is None, (lake / "said").read_text()
            run.kill()
        else:
            assert run.wait(_PATIENCE_S) == 0, (lake / "said").read_text()
    expected = load("medallion/expected").Expected(values, example.PRODUCTS)
    found, found_of_payments = (
        [rows(lake / layer) for layer in layers] for layers in (LAYERS, OF_PAYMENTS)
    )
    dead = [(one.value or b"").decode() for one in broker.stored_records(bad)]
    assert expected.differences(*found, dead) == []
    of_payments = expected.pay(paid)
    assert len(of_payments.rows) > COUNT * 0.6
    assert min(len(of_payments.bad), len(of_payments.of_another_sum)) > 10
    dead = committed_values(broker.address, unpaid)
    assert of_payments.differences(*found_of_payments, dead) == []


def copy_pipelines(
    folder: Path, topic: str, bad: str, *, of: str = "orders", layers: Sequence[str] = LAYERS
) -> None:
    for layer in layers:
        text = (EXAMPLES / "medallion" / f"{layer}.yaml").read_text()
        text = text.replace(f"topics: {of}", f"topics: {topic}")
        (folder / f"{layer}.yaml").write_text(text.replace(f"topic: {of}-bad", f"topic: {bad}"))


def run_pipeline(spark: "SparkSession", file: Path) -> None:
    said: list[str] = []
    pipeline = read_pipeline(str(file))
    runner = Runner(
        pipeline,
        load_program(pipeline, Variation(once=True)),
        spark,
        lags_of(pipeline),
        RunSettings(retries=5, look_every_s=0.1),
        say=said.append,
    )
    assert asyncio.run(runner.run()) == 0, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="not tried with PySpark before 4.2")
def test_declarative_pipelines_give_the_same_bronze_and_silver(
    spark: "SparkSession",
    broker: BrokerProcess,
    lake: Path,
    tmp_path_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("pandas", "grpc", "grpc_status", "zstandard"):
        pytest.importorskip(module, reason='pip install "pyspark[pipelines]"')
    topic, bad = make_topics(broker)
    records = list(load("medallion/generate").orders(COUNT, 1))
    project = copy_project(tmp_path_factory.mktemp("project"), lake, topic, bad)
    run_project(project, "dry-run")
    assert not (lake / "bronze").exists()
    for part in (records[: COUNT // 2], records[COUNT // 2 :]):
        send(broker, topic, part)
        run_project(project, "run")
    dead = sorted(one.value or b"" for one in broker.stored_records(bad))

    other, others = tmp_path_factory.mktemp("other"), make_topic(broker.address)
    monkeypatch.setenv("LAKE", str(other))
    load("medallion/generate").write_products(str(other / "products"))
    copy_pipelines(other, topic, others)
    for layer in ("bronze", "silver"):
        run_pipeline(spark, other / f"{layer}.yaml")
        assert in_order(rows(lake / layer)) == in_order(rows(other / layer)) != []
    assert dead == sorted(one.value or b"" for one in broker.stored_records(others)) != []


def in_order(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in found)


def copy_project(folder: Path, lake: Path, topic: str, bad: str) -> Path:
    """The declarative example, with this test's topics and lake."""
    project = EXAMPLES / "medallion" / "declarative"
    spec = (project / "spark-pipeline.yml").read_text()
    (folder / "spark-pipeline.yml").write_text(spec.replace("/tmp/medallion", str(lake)))
    text = (project / "transformations" / "layers.py").read_text()
    text = text.replace('"orders-bad"', f'"{bad}"').replace('"orders"', f'"{topic}"')
    (folder / "transformations").mkdir()
    (folder / "transformations" / "layers.py").write_text(text)
    return folder


def run_project(folder: Path, command: str) -> None:
    import pyspark

    home = Path(pyspark.__path__[0])
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]),
    }
    for _ in range(20):
        ran = subprocess.run(
            [str(home / "bin" / "spark-pipelines"), *LOCAL, command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        said = ran.stdout + ran.stderr
        # It listens on port 15002, which another session may have. And Spark waits for a process
        # that reads a topic 10 s, three times: too little for three at once on a starved machine.
        if "BindException" not in said and "Python worker failed to connect back" not in said:
            break
    assert "Run is COMPLETED" in said, said


# -- what is shown is what is run ------------------------------------------------------------------


class Recorder:
    """Stands in for the functions that write: keeps what they are called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []
        for name in (
            "to_delta",
            "to_iceberg",
            "to_topic",
            "dead_letter",
            "to_parquet",
            "to_outputs",
        ):
            monkeypatch.setattr(suwi.spark, name, self._function(name))

    def _function(self, name: str) -> Callable[..., None]:
        def write(df: Any, *arguments: Any, **named: Any) -> None:
            if "bad" in named:
                named["bad"] = plan_of(named["bad"])
            self.calls.append((name, plan_of(df), arguments, named))

        return write

    def take(self) -> list[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
        taken, self.calls = self.calls, []
        return taken


def plan_of(df: Any) -> str:
    """The analysed plan without the numbers that Spark gives to columns, streams and metrics."""
    text = df._jdf.queryExecution().analyzed().toString()
    numbers = r"#\d+L?|@[0-9a-f]+|lambda \w+|\b[0-9a-f-]{36}\b|x_\d+|(?<=\]), \d+$"
    return re.sub(numbers, "#", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "path", sorted(str(one.relative_to(EXAMPLES)) for one in EXAMPLES.glob("*/*.yaml"))
)
@pytest.mark.parametrize("variation", [Variation(), Variation(once=True, from_beginning=True)])
def test_the_text_that_is_shown_does_what_run_does(
    spark: "SparkSession",
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    variation: Variation,
) -> None:
    """The same functions, with the same plans and options."""
    for table in ("bronze", "silver", "paid"):
        columns = "id long, sku string, quantity int, at timestamp, cents long, category string"
        columns += ", country string, shipping struct<country: string>"
        empty = spark.createDataFrame([], columns)
        make_table(lake / table, empty)
    monkeypatch.setenv("OUT", str(lake))
    recorder = Recorder(monkeypatch)
    pipeline = read_pipeline(str(EXAMPLES / path))
    load_program(pipeline, variation).start(spark)
    ran = recorder.take()
    shown: dict[str, Any] = {"__name__": "shown"}
    exec(compile(script(pipeline, variation), path, "exec"), shown)
    shown["start"](spark)
    assert recorder.take() == ran
    assert len(ran) == (2 if pipeline.dead_letters and not pipeline.is_joint else 1)


def make_table(path: Path, frame: Any) -> None:
    """An empty table with the columns of a frame."""
    from suwi.spark.delta.table import open_or_create
    from suwi.spark.options import read_table_options

    open_or_create(read_table_options({"path": str(path)}), frame.schema)
