"""`make demo` holds what it claims: it checks itself and exits with an error if it cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "demo" / "demo.py"


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(sys.executable).with_name("suwi").exists(), reason="suwi is not installed here"
)
def test_the_demo_runs_without_a_terminal_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT SO" not in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
