"""`run` and `backfill`: a pipeline's queries kept running, or a range of time as a batch.

Invariants: a failure that may pass is tried again, each time after twice as long; a batch of the
same query that succeeds begins the count anew. Whatever ends the run, queries are stopped before it
returns. A Delta table gets a range once, whatever was killed: the write is named by it.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suwi.env import Env, local_env
from suwi.spark.pipeline import failures as exit_codes
from suwi.spark.pipeline.failures import Failure, Kind, failure_of
from suwi.spark.pipeline.program import Program, check_function, load_program, stop_all
from suwi.spark.pipeline.progress import Lag, Watch, report_of
from suwi.spark.pipeline.spec import DeltaSpec, Pipeline, Sink, TableSource, sink_text, source_text
from suwi.spark.pipeline.steps import DEAD_LETTERS, Between, Variation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunSettings:
    retries: int = 10
    """How often to start again after failures in a row."""
    pause_s_min: float = 1.0
    pause_s_max: float = 60.0
    look_every_s: float = 0.5
    lag_every_s: float = 2.0


class Attempts:
    """Failures in a row, and how long to wait after each."""

    def __init__(self, settings: RunSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self.begin_anew()

    def begin_anew(self) -> None:
        self._failures = 0
        self._next_pause_s = self._settings.pause_s_min

    def pause_s_after(self, failure: Failure) -> float | None:
        """None: trying again does not help, or no longer. Either is told."""
        self._failures += 1
        if failure.kind is Kind.DATA_LOST:
            self._say(f"data lost: {failure.text}")
            return None
        if failure.kind is Kind.LASTING or self._failures > self._settings.retries:
            tried = f", {self._failures} times" if self._failures > 1 else ""
            self._say(f"failed{tried}: {failure.text}")
            return None
        pause_s = self._next_pause_s
        self._say(f"{failure.text}; starting again in {pause_s:g} s")
        self._next_pause_s = min(2 * pause_s, self._settings.pause_s_max)
        return pause_s


def lags_of(pipeline: Pipeline) -> list[Lag | None]:
    """For each of its queries one; None: it reads a table. Raises `BadOption`, `Unresolved`."""
    if isinstance(pipeline.source, TableSource):
        return [None]
    disk = local_env().disk
    texts = {"kafka.bootstrap.servers": pipeline.source.servers, **pipeline.source.options}
    options = {name.lower(): text.resolve(os.environ, disk) for name, text in texts.items()}
    committed = options.get("kafka.isolation.level") == "read_committed"
    group = None if pipeline.group is None else pipeline.group.resolve(os.environ, disk)
    groups = [group]
    if pipeline.dead_letters is not None:
        groups.append(group and f"{group}-{DEAD_LETTERS}")
    return [Lag(options, group, committed_only=committed) for group in groups]


def _sinks(pipeline: Pipeline) -> list[Sink]:
    return [pipeline.sink, *([pipeline.dead_letters] if pipeline.dead_letters else [])]


class Runner:
    """One run. `watches` may be read at any time, by metrics and by whoever shows progress."""

    def __init__(
        self,
        pipeline: Pipeline,
        program: Program,
        spark: "SparkSession",
        lags: Sequence[Lag | None],
        settings: RunSettings | None = None,
        *,
        say: Say = lambda text: None,
        show: Callable[[list[Watch]], None] = lambda watches: None,
        env: Env | None = None,
    ) -> None:
        self._program = program
        self._spark = spark
        self._lags = lags
        self._settings = settings or RunSettings()
        self._say = say
        self._show = show
        self._env = env or local_env()
        names = [pipeline.name]
        if pipeline.dead_letters is not None:
            names.append(f"{pipeline.name}-{DEAD_LETTERS}")
        abouts = [f"{source_text(pipeline)} → {sink_text(sink)}" for sink in _sinks(pipeline)]
        self.watches = [
            Watch(name, self._env.clock, about) for name, about in zip(names, abouts, strict=True)
        ]
        self.restarts = 0
        self._stop: asyncio.Event | None = None
        self._stopped_by = 0
        self._advanced = False
        """Whether the query that failed had done a batch since its last start."""

    def stop(self, by: int = 0) -> None:
        """Let the run end soon; `by` is the signal that asked for it."""
        self._stopped_by = by
        if self._stop is not None:
            self._stop.set()

    async def run(self) -> int:
        """The exit code."""
        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop, number)
        try:
            return await self._run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            for lag in filter(None, self._lags):
                await loop.run_in_executor(None, lag.close)

    async def _run(self) -> int:
        assert self._stop is not None
        attempts = Attempts(self._settings, self._say)
        while True:
            self._advanced = False
            failure = await self._run_once()
            if self._stop.is_set():
                is_interrupt = self._stopped_by == signal.SIGINT
                return exit_codes.INTERRUPTED if is_interrupt else exit_codes.DONE
            if failure is None:
                return exit_codes.DONE
            if self._advanced:
                attempts.begin_anew()
            pause_s = attempts.pause_s_after(failure)
            if pause_s is None:
                return exit_codes.of(failure)
            await self._pause(pause_s)
            self.restarts += 1

    async def _run_once(self) -> Failure | None:
        """Start the queries and watch them until one fails, all are done, or somebody says stop."""
        queries: list[StreamingQuery] = []
        try:
            queries = self._program.start(self._spark)
            for watch in self.watches:
                watch.restarted()
            return await self._watch(queries)
        except Exception as error:
            log.debug("a query could not be started", exc_info=True)
            return failure_of(error)
        finally:
            stop_all(queries)

    async def _watch(self, queries: "list[StreamingQuery]") -> Failure | None:
        assert self._stop is not None
        loop = asyncio.get_running_loop()
        lag_due_s = loop.time()
        while True:
            # Asked for before the reports: what a query did before it ended is then among them.
            is_running = [query.isActive for query in queries]
            is_new = [w.look(_reports(q)) for w, q in zip(self.watches, queries, strict=True)]
            if any(is_new) or loop.time() >= lag_due_s or not any(is_running):
                await self._ask_lag()
                lag_due_s = loop.time() + self._settings.lag_every_s
            self._show(self.watches)
            for watch, query in zip(self.watches, queries, strict=True):
                error = query.exception()
                if error is not None:
                    log.debug("a query failed", extra={"error": str(error)})
                    self._advanced = watch.has_advanced
                    return failure_of(error)
            if self._stop.is_set() or not any(is_running):
                return None
            await self._pause(self._settings.look_every_s)

    async def _ask_lag(self) -> None:
        loop = asyncio.get_running_loop()
        for watch, lag in zip(self.watches, self._lags, strict=True):
            if lag is None:
                continue
            if watch.end is not None:
                await loop.run_in_executor(None, lag.reached, watch.end)
            watch.lag = await loop.run_in_executor(None, lag.behind)

    async def _pause(self, pause_s: float) -> None:
        assert self._stop is not None
        try:
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        except TimeoutError:
            pass


def _reports(query: "StreamingQuery") -> list[Any]:
    return [report_of(progress) for progress in query.recentProgress]


class NotForBatches(Exception):
    """A part of a table's result would replace all of it."""


class Backfill:
    def __init__(self, pipeline: Pipeline, between: Between) -> None:
        """Raises `NotForBatches`, `BadFunction`."""
        if isinstance(pipeline.sink, DeltaSpec) and pipeline.sink.mode == "complete":
            raise NotForBatches("with mode complete a part of the records cannot be filled in")
        check_function(pipeline, has_session=False)
        self._pipeline = pipeline
        self._variation = Variation(between=between)

    async def run(self, spark: "SparkSession", retries: int, say: Callable[[str], None]) -> int:
        """The exit code. `backfill` is not interrupted between attempts but by Ctrl-C.

        Raises `BadFunction`.
        """
        program = load_program(self._pipeline, self._variation)
        attempts = Attempts(RunSettings(retries), say)
        while True:
            try:
                program.start(spark)
                say("backfilled")
                return exit_codes.DONE
            except Exception as error:
                log.debug("a backfill failed", exc_info=True)
                failure = failure_of(error)
            pause_s = attempts.pause_s_after(failure)
            if pause_s is None:
                return exit_codes.of(failure)
            await asyncio.sleep(pause_s)
