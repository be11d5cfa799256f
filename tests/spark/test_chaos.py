"""A few kills in the course of a real pipeline; `make chaos` is the same with many."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from chaos import points
from chaos.__main__ import format_report
from chaos.outputs import OutputsRun
from chaos.run import Plan, Run
from tests.broker_process import BrokerProcess
from tests.spark.test_outputs import STEPS


@pytest.mark.slow
def test_the_output_equals_the_topic_after_kills_of_driver_worker_and_broker(
    tmp_path: Path,
) -> None:
    plan = Plan(
        kills=4,
        seed=1,
        partitions=10,
        pipelines=("only",),
        masters=("local[1,4]", "local[2,4]"),
        strikes=("first batch", "worker", "broker", "commit"),
    )
    report = Run(plan, tmp_path, print).go()
    assert report.verdict is not None
    assert report.verdict.is_exact, format_report(report)
    assert report.killed == 4
    assert report.kills["broker"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(2_700)  # A dozen drivers: minutes on a quiet machine.
def test_all_outputs_together_equal_the_topic_wherever_the_driver_is_killed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install .[iceberg]")
    pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install .[spark-tests]")
    plan = Plan(
        kills=10,
        seed=1,
        partitions=4,
        pipelines=("only",),
        masters=("local[1,4]", "local[2,4]"),
        with_upkeep=False,
    )
    report = OutputsRun(plan, tmp_path, print).go()
    assert report.verdict is not None
    assert report.verdict.is_exact, format_report(report)
    assert all(report.times(who) for who in report.needed), format_report(report)


@pytest.mark.slow
def test_each_row_is_in_one_output_once_whoever_dies_at_any_step(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install .[iceberg]")
    pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install .[spark-tests]")
    with BrokerProcess(tmp_path / "broker") as broker:
        run = points.Run(tmp_path / "lake", broker, print)
        run.go(1)
        assert run.kills.total() >= len(STEPS) + 3
        assert run.rows()
