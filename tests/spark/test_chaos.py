"""A few kills in the course of a real pipeline; `make chaos` is the same with many."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from chaos.__main__ import format_report
from chaos.outputs import OutputsRun
from chaos.run import Plan, Run


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Run, OutputsRun])
def test_the_output_equals_the_topic_after_kills_of_driver_worker_and_broker(
    tmp_path: Path, kind: type[Run]
) -> None:
    plan = Plan(
        kills=4,
        seed=1,
        partitions=10,
        pipelines=("only",),
        masters=("local[1,4]", "local[2,4]"),
        strikes=("first batch", "worker", "broker", "commit"),
    )
    report = kind(plan, tmp_path, print).go()
    assert report.verdict is not None
    assert report.verdict.is_exact, format_report(report)
    assert report.killed == 4
    assert report.kills["broker"] >= 1
