"""`make demo` and `make tour` hold what they claim: they check themselves and exit with an error
if they cannot."""

import os
import pty
import re
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from suwi.console.server import STATIC
from tests.broker_process import BrokerProcess

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


LOOK_AROUND = """
import sys
from types import SimpleNamespace
from demo import Demo
from stage import Stage
Demo(Stage(), None, 0).look_around(SimpleNamespace(bootstrap_servers=sys.argv[1]))
"""


@pytest.mark.skipif(find_spec("deltalake") is None, reason="needs the extra `spark`")
@pytest.mark.skipif(not Path(STATIC, "index.html").exists(), reason="the pages are not built")
def test_in_a_terminal_the_demo_shows_the_console_until_enter(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with BrokerProcess(tmp_path / "data") as broker:
        demo = subprocess.Popen(
            [sys.executable, "-c", LOOK_AROUND, broker.address],
            cwd=DEMO,
            stdin=theirs,
            stdout=theirs,
            env={**os.environ, "COLUMNS": "200"},
        )
        os.close(theirs)
        seen = b""
        while b"Press Enter" not in seen:
            seen += os.read(ours, 4096)
        address = re.search(rb"http://\S+token=[\w-]+=*", seen)
        assert address is not None, seen
        with urllib.request.urlopen(address[0].decode(), timeout=60) as page:
            assert page.status == 200
        os.write(ours, b"\n")
        assert demo.wait(60) == 0
        os.close(ours)
