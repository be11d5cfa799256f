"""A broker as people run it: `suwi serve` in a process of its own, on a port of its own.

It is a fork that has imported everything, unless a test must do something before it starts.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType

import suwi
from suwi.records.batch import BatchHeader, batches, compute_crc
from suwi.records.record import Record, iter_records
from suwi.testing.node import Reservation
from tests.forked_suwi import ForkedSuwi

SOURCE = Path(suwi.__file__).parents[1]
COMMAND = (sys.executable, "-m", "suwi")
_ADDRESS = re.compile(r"listening on +PLAINTEXT://127\.0\.0\.1:(\d+)")
# Else the first member of every group waits three seconds for others.
_NO_DELAY = "group.initial.rebalance.delay.ms=0"
_STOP_S = 120
_numbers = count()


class BrokerProcess:
    """One broker on one data directory; it may be stopped, killed and started again."""

    def __init__(
        self,
        data: Path,
        *settings: str,
        options: Sequence[str] = (),
        in_child: Callable[[], None] | None = None,
        wait: bool = True,
    ) -> None:
        """`wait`: as a context manager it is entered when clients are served."""
        self.data = data
        self._reservation = Reservation()
        # Several brokers would take the ports after it, which are not reserved.
        self.port = 0 if "--brokers" in options else self._reservation.port
        self._settings = settings
        self._options = options
        self._in_child = in_child
        self._wait = wait
        self._process: subprocess.Popen[str] | ForkedSuwi | None = None
        self._log = data.with_name(data.name + ".log")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the broker has logged, over all its starts."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> "BrokerProcess":
        """Returns when clients are served. A broker that comes back keeps its port."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        assert not self.is_running
        if self._in_child is None:
            self._process = ForkedSuwi(["serve", *self._arguments()], environment(), self._log)
            return
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "serve", *self._arguments()],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=self._in_child,
            )

    def wait_until_ready(self) -> "BrokerProcess":
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            listening = _ADDRESS.match(line)
            if listening is not None:
                self.port = int(listening[1])
                return self
        self.kill()
        raise AssertionError(f"the broker did not start:\n{self.log}")

    def metrics_url(self) -> str:
        """Where its metrics are; it must have been started with --metrics-port."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("metrics at"):
                return line.split()[2]
        raise AssertionError("the broker serves no metrics")

    def refused_start(self) -> str:
        """Start where it must be refused; what the broker says on its way out."""
        ended = subprocess.run(
            [*COMMAND, "serve", *self._arguments()],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_STOP_S,
            check=False,
        )
        assert ended.returncode != 0, ended.stdout
        return ended.stderr

    def interrupt(self) -> int | None:
        """SIGINT, as by Ctrl-C; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=_STOP_S)
        return self._process.returncode

    def stop(self) -> str:
        """SIGTERM; what it says while it stops."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=_STOP_S)
        assert self._process.returncode == 0, self.log
        return said

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no goodbye."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.kill()
        if not self._process.stdout.closed:
            self._process.communicate()

    def __enter__(self) -> "BrokerProcess":
        self.launch()
        return self.wait_until_ready() if self._wait else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def _arguments(self) -> list[str]:
        given = (_NO_DELAY, *self._settings)
        settings = [word for setting in given for word in ("--set", setting)]
        address = f"127.0.0.1:{self.port}"
        return ["--listen", address, "--data", str(self.data), *self._options, *settings]

    # -- what lies on its disk -------------------------------------------------------------------

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.data / f"{topic}-{partition}"

    def stored_batches(self, topic: str, partition: int = 0) -> list[BatchHeader]:
        return [header for header, _ in self.stored(topic, partition)]

    def stored_records(self, topic: str, partition: int = 0) -> list[Record]:
        return [record for _, records in self.stored(topic, partition) for record in records]

    def stored(self, topic: str, partition: int = 0) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """Every batch in the partition's files, with its records."""
        for segment in sorted(self.partition_dir(topic, partition).glob("*.log")):
            data = segment.read_bytes()
            for position, header in batches(data):
                batch = data[position : position + header.size_bytes]
                assert compute_crc(batch, 0, header.size_bytes) == header.crc
                yield header, list(iter_records(batch, header))


def unique_name(word: str) -> str:
    """A topic name that no other test of this process uses."""
    return f"{word}-{next(_numbers)}"


def environment() -> dict[str, str]:
    """That of a process which finds this source, without settings for a broker."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUWI_", "KAFKA_"))
    }
    return {**kept, "PYTHONPATH": os.pathsep.join([str(SOURCE), kept.get("PYTHONPATH", "")])}
