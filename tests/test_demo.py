"""`make demo` and `make tour` hold what they claim: they check themselves and exit with an error
if they cannot."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "demo"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path(sys.executable).with_name("suwi").exists(), reason="suwi is not installed here"
    ),
]


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, DEMO / script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT SO" not in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_the_tour_runs_without_a_terminal_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path, monkeypatch, "tour.py")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("pyspark") is None, reason="needs the extra `spark`")
def test_the_demo_runs_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path, monkeypatch, "demo.py", "--events", "20000")
    assert not list(tmp_path.glob("suwi-demo-*")), "it cleans up; Spark may leave something"
