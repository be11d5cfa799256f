"""The demo's pipeline: `suwi pipeline run` in its own process, and the table that it writes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_STOP_S = 120


class Pipeline:
    def __init__(self, file: Path, servers: str, work: Path) -> None:
        self._file = file
        self._environment = {**os.environ, "SUWI_BROKER": servers, "DEMO_DIR": str(work)}
        self._table = work / "table"
        self._log = work / "pipeline.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = Path(sys.executable).with_name("suwi")
        if not command.exists():
            raise RuntimeError(f"{command} does not exist: run `make setup` first")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(command), "pipeline", "run", str(self._file), "--log-level", "error"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def rows(self) -> int:
        """How many rows the table has, according to its log."""
        try:
            table = DeltaTable(self._table)
        except TableNotFoundError:
            return 0
        actions = table.get_add_actions(flatten=True)
        return sum(int(count.as_py()) for count in actions.column("num_records"))

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_S)

    def kill(self) -> None:
        if self.is_running:
            assert self._process is not None
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def describe_group(self) -> tuple[str, int]:
        """`suwi groups describe` of the pipeline's group: its output, and the lag in records; -1
        before the first commit."""
        text = self._describe_group()
        described = self._describe_group("--json")
        if not described:
            return text, -1
        return text, sum(group["lag"] for group in json.loads(described))

    def _describe_group(self, *options: str) -> str:
        command = [str(Path(sys.executable).with_name("suwi")), "groups", "describe", "orders"]
        described = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
        )
        return described.stdout

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:]) or "it said nothing"


def read_ids(table: Path) -> list[int]:
    """The ids of all orders in the table."""
    return DeltaTable(table).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
