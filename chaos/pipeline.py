"""A Spark pipeline beside the writers of a run: from a topic of its own to a Delta table.

The driver is restarted when it ends, as a supervisor would; at the end the table must contain every
record of the topic once (`chaos.checker`).
"""

import threading
from pathlib import Path

from deltalake import DeltaTable

from chaos.checker import Row, compare
from chaos.events import Writer, read_topic
from chaos.processes import Process

TOPIC = "events"
_PIPELINE = "only"
_ROWS = 2_000
_FINISH_S = 600.0
_FINISH_TRIES = 3


class Pipeline:
    def __init__(self, servers: str, partitions: int, home: Path) -> None:
        self._servers = servers
        self._partitions = partitions
        self._home = home / "spark"
        self._writer = Writer(servers, TOPIC, partitions)
        self._is_over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._drivers: list[Process] = []

    def __enter__(self) -> "Pipeline":
        self._home.mkdir()
        self._writer.start()
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._supervisor.join()

    def finish(self) -> tuple[str, bool]:
        """Let it reach the end of the topic; the verdict, and whether the table is right."""
        try:
            sent = self._writer.stop()
        except Exception as error:
            return f"its writer failed: {error!r}", False
        self.__exit__()
        for _ in range(_FINISH_TRIES):
            if self._driver("--once").wait(_FINISH_S) == 0:
                break
        else:
            return f"it did not finish: {self._home}/driver.log", False
        topic = read_topic(self._servers, TOPIC, self._partitions)
        table = DeltaTable(str(self._home / "table"))
        columns = table.to_pyarrow_table().to_pydict()
        names = ("pipeline", "partition", "offset", "number")
        rows = [Row(p, (at, o), n) for p, at, o, n in zip(*map(columns.get, names), strict=True)]
        verdict = compare(sent, topic, rows, [_PIPELINE])
        started = f"{table.version()} commits, {len(self._drivers)} drivers"
        return f"{verdict}; {started}", verdict.is_exact

    def _supervise(self) -> None:
        driver = self._driver()
        while not self._is_over.wait(1.0):
            if not driver.is_running:
                driver = self._driver()
        if driver.is_running:
            driver.kill()

    def _driver(self, *more: str) -> Process:
        options = {
            "servers": self._servers,
            "topic": TOPIC,
            "table": str(self._home / "table"),
            "checkpoints": str(self._home / "checkpoints"),
            "pipelines": _PIPELINE,
            "master": "local[1,4]",
            "scratch": str(self._home / "scratch"),
            "rows": str(_ROWS),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        driver = Process(["-m", "chaos.job", *words, *more], self._home / "driver.log")
        self._drivers.append(driver)
        return driver
