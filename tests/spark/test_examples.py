"""The examples do what they say: run on generated data, compared with plain Python."""

import asyncio
import importlib.util
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable

from suwi.records.record import Record
from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.steps import Variation
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.spark.streams import finish_all
from tests.spark.topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
ends_what_is_open = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="PySpark 4.1 leaves windows that a run ends to the next run"
)


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), EXAMPLES / f"{path}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def send(broker: BrokerProcess, topic: str, records: list[dict[str, Any]]) -> None:
    Suwi(broker.address).ok("topics", "create", topic)
    made = [Record(key=one["key"].encode(), value=one["value"].encode()) for one in records]
    fill(broker.address, topic, made)


def rows(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


@pytest.fixture
def clicks(broker: BrokerProcess) -> list[dict[str, Any]]:
    if not Suwi(broker.address)("topics", "describe", "clicks").exit_code:
        return list(load("clicks/generate").clicks(40, 1))
    records = list(load("clicks/generate").clicks(40, 1))
    send(broker, "clicks", records)
    Suwi(broker.address).ok("topics", "create", "clicks-bad")
    return records


def readable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [json.loads(one["value"]) for one in records if one["value"].startswith("{")]
    return [{**one, "at": datetime.fromisoformat(one["at"])} for one in found]


def sessions(clicks: list[dict[str, Any]]) -> set[tuple[str, datetime, int]]:
    """Those that are over: their user, start and number of clicks."""
    watermark = max(click["at"] for click in clicks) - timedelta(minutes=2)
    by_user = defaultdict(list)
    for click in clicks:
        by_user[click["user"]].append(click["at"])
    found = []
    for user, times in by_user.items():
        last = None
        for at in sorted(times):
            if last is None or at >= last + timedelta(minutes=10):
                found.append([user, at, 0, at])
            last = at
            found[-1][2] += 1
            found[-1][3] = at
    over = [one for one in found if one[3] + timedelta(minutes=10) <= watermark]
    return {(user, start, count) for user, start, count, _ in over}


@pytest.mark.slow
@ends_what_is_open
def test_clicks_become_sessions(
    spark: "SparkSession", broker: BrokerProcess, clicks: list[dict[str, Any]], tmp_path: Path
) -> None:
    example = load("clicks/sessions")
    finish_all(lambda: example.start(spark, broker.address, str(tmp_path)))
    found = rows(tmp_path / "sessions")
    expected = sessions(readable(clicks))
    assert len(expected) > 5
    assert {(row["user"], row["start"], row["clicks"]) for row in found} == expected
    assert len(found) == len(expected)
    bad = broker.stored_records("clicks-bad")
    assert len(bad) == len(clicks) - len(readable(clicks)) > 0


@pytest.mark.slow
@ends_what_is_open
def test_orders_are_in_the_table_once_and_revenue_goes_back_into_a_topic(
    spark: "SparkSession",
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUWI_BROKER", broker.address)
    monkeypatch.setenv("OUT", str(tmp_path))
    records = list(load("orders/generate").orders(700, 1))
    send(broker, "orders", records)
    for topic in ("orders-bad", "revenue"):
        Suwi(broker.address).ok("topics", "create", topic)
    has_iceberg = all(map(importlib.util.find_spec, ("pyiceberg", "duckdb")))
    for name in ("table", "revenue", *(["iceberg"] if has_iceberg else [])):
        said: list[str] = []
        pipeline = read_pipeline(str(EXAMPLES / "orders" / f"{name}.yaml"))
        runner = Runner(
            pipeline,
            load_program(pipeline, Variation(once=True)),
            spark,
            lags_of(pipeline),
            RunSettings(retries=5, look_every_s=0.1),
            say=said.append,
        )
        assert asyncio.run(runner.run()) == 0, said

    sent = readable(records)
    orders = {order["id"]: order for order in sent}
    assert len(sent) > len(orders) == 700  # some came twice
    found = rows(tmp_path / "table")
    assert sorted(row["id"] for row in found) == sorted(orders)
    assert {row["day"].isoformat() for row in found} == {"2026-01-01"}
    if has_iceberg:
        from tests.spark.iceberg.tables import rows_of

        iceberg = rows_of(tmp_path / "lake", "shop.orders")
        assert sorted(row["id"] for row in iceberg) == sorted(orders)

    watermark = max(order["at"] for order in sent) - timedelta(minutes=10)
    expected: dict[tuple[str, datetime], int] = defaultdict(int)
    for order in orders.values():
        minute = order["at"].replace(second=0)
        if minute + timedelta(minutes=1) <= watermark:
            expected[order["shop"], minute] += order["cents"]
    assert len(expected) > 20
    lines = [json.loads(record.value or b"") for record in broker.stored_records("revenue")]
    revenue = {
        (line["shop"], datetime.fromisoformat(line["minute"]).astimezone(UTC)): line["cents"]
        for line in lines
    }
    assert len(lines) == len(revenue)
    assert revenue == expected
