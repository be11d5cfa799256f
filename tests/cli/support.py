"""Runs `suwi` as people and scripts do: in this process if possible, otherwise in a new one."""

import json
import os
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from suwi.cli.main import app
from tests.broker_process import COMMAND, SOURCE

_PATIENCE_S = 120


class Suwi:
    """The command line, with the address of a broker."""

    def __init__(self, broker: str) -> None:
        self.broker = broker

    def __call__(self, *arguments: object) -> Result:
        """Run a command through the entry point, in this process."""
        return CliRunner().invoke(
            app, [str(argument) for argument in arguments], env={"SUWI_BROKER": self.broker}
        )

    def ok(self, *arguments: object) -> str:
        """The output of a command that must succeed, without output on stderr."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return str(result.stdout)

    def json(self, *arguments: object) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def json_lines(self, *arguments: object) -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def refusal(self, *arguments: object) -> str:
        """The error of a command that must fail: one line on stderr, no traceback."""
        result = self(*arguments)
        assert result.exit_code == 1, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("suwi: ")
        return str(line.removeprefix("suwi: "))

    def misuse(self, *arguments: object) -> str:
        """The output of a command with a usage error."""
        result = self(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Usage: " in result.stderr
        return str(result.stderr)

    def produce(self, topic: str, lines: str | bytes, *options: object) -> None:
        """Write what stdin would be; only a process of its own has one."""
        with NamedTemporaryFile() as file:
            file.write(lines if isinstance(lines, bytes) else lines.encode())
            file.flush()
            self.ok("produce", *options, "--file", file.name, "--", topic)

    # -- in a process of its own -----------------------------------------------------------------

    def run(self, *arguments: object, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=self.environment(),
            timeout=_PATIENCE_S,
            check=False,
        )

    def start(self, *arguments: object, **how: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*COMMAND, *map(str, arguments)], env=self.environment(), **how)

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SUWI_", "KAFKA_"))}
        return {**kept, "PYTHONPATH": str(SOURCE), "SUWI_BROKER": self.broker}


def write_lines(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(
        b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    )
    return path
