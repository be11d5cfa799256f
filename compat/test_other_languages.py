"""Clients of other languages, as programs use them: franz-go (Go) and kafkajs (Node.js)."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess

NEEDS_KAFKA = False
HERE = Path(__file__).parent
FETCHED = HERE.parent / ".kafka"
TRANSACTIONS, RECORDS_EACH = 6, 10
_TIME_S = 600


def run(command: list[str], directory: Path) -> str:
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_TIME_S, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


def check(told: str) -> None:
    """Only records of committed transactions were read, in order; and how far is committed."""
    committed = range(0, TRANSACTIONS, 2)
    values = [f"{number}-{record}" for number in committed for record in range(RECORDS_EACH)]
    assert re.findall(r"^read (.+)$", told, re.M) == values
    last_committed_end = (TRANSACTIONS - 1) * (RECORDS_EACH + 1)  # each has a marker
    (offset,) = re.findall(r"^committed (\d+)$", told, re.M)
    # Behind it are an aborted transaction and its marker, which a consumer may have passed.
    assert last_committed_end - 1 <= int(offset) <= TRANSACTIONS * (RECORDS_EACH + 1)


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
def test_franz_go(suwi: BrokerProcess, topic: str, tmp_path: Path) -> None:
    program = tmp_path / "franz_go"
    run(["go", "build", "-o", str(program), "."], HERE / "franz_go")
    check(run([str(program), suwi.address, topic, str(TRANSACTIONS)], tmp_path))


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no Node.js")
def test_kafkajs(suwi: BrokerProcess, topic: str) -> None:
    directory = FETCHED / "kafkajs"
    shutil.copytree(HERE / "kafkajs", directory, dirs_exist_ok=True)
    run(["npm", "ci", "--silent"], directory)
    check(run(["node", "main.js", suwi.address, topic, str(TRANSACTIONS)], directory))
