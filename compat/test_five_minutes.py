"""The path of docs/pipeline.md from a topic to a gold table, word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable

from tests.broker_process import SOURCE, BrokerProcess

NEEDS_KAFKA = False
ROOT = Path(__file__).parents[1]
_MORE = "python examples/medallion/generate.py orders --start 2000 | suwi produce orders --json"


def commands() -> str:
    """What is typed in the second terminal."""
    text = (ROOT / "docs" / "pipeline.md").read_text()
    section = text.partition("## From a topic to a gold table")[2].partition("\n## ")[0]
    _, second = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(second)


def test_a_newcomer_gets_a_gold_table(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        environ = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "SUWI_BROKER": broker.address,
            "LAKE": str(tmp_path / "lake"),
        }

        def run(text: str) -> str:
            done = subprocess.run(
                ["/bin/sh", "-e", "-c", text.replace("/tmp/medallion", environ["LAKE"])],
                cwd=ROOT,
                env=environ,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        typed = commands()
        first = run(typed)
        assert first.count("'quarter': ") == 5
        assert first.count("suwi.dead.reason") == 3
        (all_layers,) = [line for line in typed.splitlines() if "pipeline run" in line]
        silver = str(tmp_path / "lake" / "silver")
        before = DeltaTable(silver).to_pyarrow_table().num_rows
        run(f"{_MORE}\n{all_layers}")
        assert DeltaTable(silver).to_pyarrow_table().num_rows > 1.5 * before
