"""What the command line says about a cluster, as JSON: the same before and after an upgrade."""

import json
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from suwi.cli.main import app
from tests.broker_process import COMMAND, environment


def run(address: str, *words: str, stdin: str = "") -> str:
    return run_offline(*words, "--broker", address, stdin=stdin)


def run_offline(*words: str, stdin: str = "") -> str:
    if not stdin:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        return str(result.stdout)
    ended = subprocess.run(  # Input is read from a file descriptor.
        [*COMMAND, *words],
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def observe(address: str) -> dict[str, Any]:
    """Topics, records, configuration and users."""
    described = json.loads(run(address, "topics", "describe", "--json"))
    names = [topic["topic"] for topic in described]
    return {
        "topics": described,
        "list": json.loads(run(address, "topics", "list", "--json")),
        "replicas": json.loads(run(address, "topics", "describe", "--replicas", "--json")),
        "events": json.loads(run(address, "cluster", "events", "--json")),
        "records": {name: records(address, name) for name in names},
        "configs": {
            name: json.loads(run(address, "configs", "describe", "topic", name, "--json"))
            for name in names
        },
        "broker configs": json.loads(
            run(address, "configs", "describe", "broker", "all", "--json")
        ),
        "users": json.loads(run(address, "users", "list", "--json")),
    }


def records(address: str, topic: str) -> list[dict[str, Any]]:
    found = _lines(run(address, "consume", topic, "--from-beginning", "--no-follow", "--json"))
    return sorted(found, key=lambda record: (record["partition"], record["offset"]))


def dump(data: Path) -> list[dict[str, Any]]:
    """What `suwi dump` says about a data directory, with paths relative to it."""
    said = run_offline("dump", str(data), "--records", "--json")
    return _lines(said.replace(f"{data}/", ""))


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
