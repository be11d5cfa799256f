"""`python -m chaos.points`: who dies at which step of a batch with several outputs, without Spark.

A driver calls `OutputBatches` as Spark does. It is a process of its own, forked from one that has
loaded everything, and is killed with SIGKILL: that takes a second, not the start of a Java and a
session. Killed are drivers after each step, workers while they write, the broker, and two drivers
that have one checkpoint. Chance routes the rows, anew in each attempt; at the end every row must be
in one output, once. `python -m chaos --sink outputs` does the same around a Spark.
"""

import argparse
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from chaos.outputs import add_run
from suwi.spark.manifest import AnotherProcess
from suwi.spark.origin import Origin
from suwi.spark.output_batches import Output, OutputBatches, OutputTask
from tests.broker_process import BrokerProcess
from tests.spark.test_outputs import STEPS, Job, attempt, wide

_LOADED: Final = """
    suwi.cli.main suwi.cli.serve suwi.cli.broker_process chaos.points
    pyiceberg.catalog.sql pyiceberg.io.pyarrow pyspark.sql.pandas.types
    suwi.spark.delta.data_source suwi.spark.delta.files suwi.spark.delta.upsert
    suwi.spark.exactly_once suwi.spark.iceberg.data_source suwi.spark.iceberg.files
    suwi.spark.table_commit suwi.spark.table_writer suwi.spark.topic_writer
""".split()
"""Before drivers are forked: else each of them loads it when it needs it."""
_ROWS: Final = 60
_REFUSED: Final = 7
_WORKERS: Final = "worker"
_LIMIT_S: Final = 300


class Lake:
    """What processes are told of a job: they can have no broker's handle."""

    def __init__(self, folder: Path, outputs: Mapping[str, Output]) -> None:
        self._folder, self._outputs = folder, outputs

    def job(self) -> Job:
        job = Job(self._folder)
        job.outputs = dict(self._outputs)
        return job


def drive(lake: Lake, batch: int, stop_at: str, parent: Connection) -> None:
    """One driver and one batch. It tells the parent when the step is done, and waits for a word."""
    job = lake.job()

    def after(step: str) -> None:
        if step == stop_at:
            parent.send("at")
            parent.recv()

    def work(task: OutputTask) -> Iterable[Any]:
        parts = [range(batch * _ROWS, batch * _ROWS + 20), range(batch * _ROWS + 20, _end(batch))]
        if stop_at != _WORKERS:
            return [attempt(task, job.rows(part)) for part in parts]
        parent.send([(pickle.dumps(task), part) for part in parts])
        done: list[Any] = parent.recv()
        return done

    driver = OutputBatches(job.outputs, str(lake._folder / "checkpoint"), after=after)
    try:
        driver.run(Origin(job.query, batch, f"run {os.getpid()}"), wide(job.outputs), work)
    except AnotherProcess:
        sys.exit(_REFUSED)


def write(
    lake: Lake, task: bytes, part: Sequence[int], is_killed: bool, parent: Connection
) -> None:
    """One attempt of a task; a killed one has written a part of its rows."""
    job = lake.job()

    def batches() -> Iterator[Any]:
        yield job.rows(part[: len(part) // 2])
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        yield job.rows(part[len(part) // 2 :])

    ((message,),) = [one.column(0).to_pylist() for one in pickle.loads(task)(batches())]
    parent.send(pickle.loads(message))


def _end(batch: int) -> int:
    return (batch + 1) * _ROWS


class Run:
    def __init__(self, home: Path, broker: BrokerProcess, say: Callable[[str], None]) -> None:
        self._broker, self._say = broker, say
        self._job = Job(home, broker)
        self._lake = Lake(home, self._job.outputs)
        self._context = multiprocessing.get_context("forkserver")
        self.kills: Counter[str] = Counter()
        self.batches = 0
        self.starts = 0

    def go(self, times: int) -> None:
        kinds: dict[str, Callable[[], None]] = {
            **{f"driver after {step}": self._killer(step) for step in STEPS},
            _WORKERS: self._kill_worker,
            "broker": self._kill_broker,
            "second driver": self._kill_second,
        }
        for number in range(times):
            for kind, strike in kinds.items():
                strike()
                self._drive_to_the_end()
                self._hit(kind)
            self._say(f"{number + 1} of {times}: {self.kills.total()} kills")

    def rows(self) -> dict[str, int]:
        """How many rows stand there; raises AssertionError if one is missing or there twice."""
        seen = self._job.seen()
        assert seen == Counter(range(self.batches * _ROWS)), seen - Counter(range(10**6))
        return {"all outputs": seen.total()}

    def _hit(self, kind: str) -> None:
        self.kills[kind] += 1

    def _start(self, stop_at: str = "") -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        self.starts += 1
        process = self._context.Process(
            target=drive, args=(self._lake, self.batches, stop_at, theirs)
        )
        process.start()
        theirs.close()
        return process, ours

    def _start_until(self, step: str) -> tuple[Any, Connection]:
        process, driver = self._start(step)
        assert driver.poll(_LIMIT_S), f"{step} did not come"
        assert driver.recv() == "at"
        return process, driver

    def _drive_to_the_end(self) -> None:
        process, _ = self._start()
        process.join(_LIMIT_S)
        assert process.exitcode == 0, process.exitcode
        self.batches += 1

    def _kill_at(self, step: str) -> None:
        process, driver = self._start_until(step)
        process.kill()
        process.join()
        driver.close()

    def _killer(self, step: str) -> Callable[[], None]:
        def strike() -> None:
            self._kill_at(step)
            # And the next one on its way, where what is decided already is not decided again.
            later = random.choice(STEPS[STEPS.index(step) :])
            if STEPS.index(step) < STEPS.index("manifest") and random.random() < 0.5:
                self._kill_at(later)
                self._hit(f"driver after {later}")

        return strike

    def _kill_worker(self) -> None:
        process, driver = self._start(_WORKERS)
        tasks = driver.recv()
        self._attempt(*tasks[0], is_killed=True)
        driver.send([self._attempt(*task) for task in tasks])
        process.join(_LIMIT_S)
        assert process.exitcode == 0

    def _attempt(self, task: bytes, part: Sequence[int], *, is_killed: bool = False) -> Any:
        ours, theirs = self._context.Pipe()
        arguments = (self._lake, task, part, is_killed, theirs)
        process = self._context.Process(target=write, args=arguments)
        process.start()
        theirs.close()
        try:
            return ours.recv()
        except EOFError:
            assert is_killed
            return None
        finally:
            process.join()

    def _kill_broker(self) -> None:
        """While a driver is between two steps, which then goes on; it may fail, or not."""
        process, driver = self._start_until(random.choice(STEPS))
        self._broker.kill()
        driver.send("go on")
        self._broker.start()
        process.join(_LIMIT_S)
        assert process.exitcode is not None

    def _kill_second(self) -> None:
        """It is refused while the first has the checkpoint; then the first dies."""
        process, driver = self._start_until(random.choice(STEPS))
        second, _ = self._start()
        second.join(_LIMIT_S)
        assert second.exitcode == _REFUSED, second.exitcode
        process.kill()
        process.join()
        driver.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.points", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often each is killed")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    # Before the broker starts: it is forked from the same server.
    multiprocessing.get_context("forkserver").set_forkserver_preload(_LOADED)
    with (
        tempfile.TemporaryDirectory(prefix="suwi-points-") as directory,
        BrokerProcess(Path(directory) / "broker") as broker,
    ):
        run = Run(Path(directory) / "lake", broker, lambda line: print(line, flush=True))
        run.go(arguments.times)
        rows = run.rows()
    add_run(
        {
            "what": "without Spark",
            "kills": dict(run.kills),
            "seconds": round(time.monotonic() - began_s),
            "starts": run.starts,
            "records": run.batches * _ROWS,
            "rows": rows,
            "exact": True,
        }
    )
    print(
        f"{run.kills.total()} kills: " + ", ".join(f"{n} × {who}" for who, n in run.kills.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
