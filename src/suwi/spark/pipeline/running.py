"""`run`: a pipeline's queries kept running.

Invariants: a failure that may pass is tried again, each time after twice as long; a batch of the
same query that succeeds begins the count anew. Whatever ends the run, queries are stopped before it
returns.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suwi.client.pipeline_status import FAILED, RUNNING, STATUS_EVERY_S, STOPPED, WAITING
from suwi.env import Env, local_env
from suwi.spark.pipeline import failures as exit_codes
from suwi.spark.pipeline.failures import Failure, Kind, failure_of
from suwi.spark.pipeline.program import Program, stop_all
from suwi.spark.pipeline.progress import Lag, Watch, report_of
from suwi.spark.pipeline.publishing import Publisher
from suwi.spark.pipeline.spec import (
    Pipeline,
    TopicSource,
    sink_text,
    sinks_text,
    sources_text,
)
from suwi.spark.pipeline.steps import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

Say = Callable[[str], None]
_ENDED = (exit_codes.DONE, exit_codes.INTERRUPTED)
_BUSY_MAX = 30


@dataclass(frozen=True, slots=True)
class RunSettings:
    retries: int = 10
    """How often to start again after failures in a row."""
    pause_s_min: float = 1.0
    pause_s_max: float = 60.0
    look_every_s: float = 0.5
    lag_every_s: float = 2.0
    status_every_s: float = STATUS_EVERY_S


class Attempts:
    """Failures in a row, and how long to wait after each.

    A worker that Spark gave too little time to start does not count as one of the retries.
    """

    def __init__(self, settings: RunSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self.final = ""
        """Why there is no further attempt."""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._failures = self._busy = 0
        self._next_pause_s = self._settings.pause_s_min

    def pause_s_after(self, failure: Failure) -> float | None:
        """None: trying again does not help, or no longer; `final` says why."""
        is_busy = failure.kind is Kind.BUSY
        self._busy, self._failures = self._busy + is_busy, self._failures + (not is_busy)
        if failure.kind is Kind.DATA_LOST:
            self.final = f"data lost: {failure.text}"
            return None
        is_last = self._failures > self._settings.retries or self._busy > _BUSY_MAX
        if failure.kind is Kind.LASTING or is_last:
            failures = self._failures + self._busy
            tried = f", {failures} times" if failures > 1 else ""
            self.final = f"failed{tried}: {failure.text}"
            return None
        pause_s = self._next_pause_s
        self._say(f"{failure.text}; starting again in {pause_s:g} s")
        self._next_pause_s = min(2 * pause_s, self._settings.pause_s_max)
        return pause_s


def lags_of(pipeline: Pipeline) -> list[Lag | None]:
    """For each of its queries one; None: it reads a table. Raises `BadOption`, `Unresolved`."""
    topics = [one.source for one in pipeline.inputs.values() if isinstance(one.source, TopicSource)]
    clusters = {source.servers.value for source in topics}
    if len(clusters) != 1:
        return [None]  # A group is one cluster's.
    texts = {"kafka.bootstrap.servers": topics[0].servers, **topics[0].options}
    options = {name.lower(): text.value for name, text in texts.items()}
    committed = options.get("kafka.isolation.level") == "read_committed"
    group = None if pipeline.group is None else pipeline.group.value
    groups = [group]
    if pipeline.dead_letter_query:
        groups.append(group and f"{group}-{DEAD_LETTERS}")
    return [Lag(options, group, committed_only=committed) for group in groups]


class Runner:
    """One run. `watches` may be read at any time, for metrics and progress."""

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
        publisher: Publisher | None = None,
        env: Env | None = None,
    ) -> None:
        self._program = program
        self._spark = spark
        self._lags = lags
        self._publisher = publisher
        self._settings = settings or RunSettings()
        self._say = say
        self._show = show
        self._env = env or local_env()
        sinks = {pipeline.name: sinks_text(pipeline)}
        if pipeline.dead_letter_query:
            names = (pipeline.name, f"{pipeline.name}-{DEAD_LETTERS}")
            sinks = dict(zip(names, map(sink_text, pipeline.sinks.values()), strict=True))
        self.watches = [
            Watch(name, self._env.clock, f"{sources_text(pipeline)} → {sink}")
            for name, sink in sinks.items()
        ]
        self.restarts = 0
        self.reason = ""
        """Why the run failed: to be told last."""
        self._stop = asyncio.Event()
        self._stopped_by = 0
        self._advanced = False
        """Whether the query that failed had done a batch since its last start."""

    def stop(self, by: int = 0) -> None:
        """End the run soon; `by` is the signal that was received."""
        self._stopped_by = by
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    async def run(self) -> int:
        """The exit code."""
        return await run_all([self])

    async def run_and_close(self) -> int:
        """As `run`, without listening to signals."""
        loop = asyncio.get_running_loop()
        try:
            code = await self._run()
            await self._publish(STOPPED if code in _ENDED else FAILED)
            return code
        finally:
            used: list[Lag | Publisher | None] = [*self._lags, self._publisher]
            for each in used:
                if each is not None:
                    await loop.run_in_executor(None, each.close)

    async def _run(self) -> int:
        attempts = Attempts(self._settings, self._say)
        while True:
            self._advanced = False
            failure = await self._run_once()
            if failure is not None:
                # A signal to all processes of a service may have ended Spark before it came here.
                await self._pause(self._settings.look_every_s)
            if self._stop.is_set():
                is_interrupt = self._stopped_by == signal.SIGINT
                return exit_codes.INTERRUPTED if is_interrupt else exit_codes.DONE
            if failure is None:
                return exit_codes.DONE
            if self._advanced:
                attempts.begin_anew()
            if self._publisher is not None:
                self._publisher.failed(failure.text)
            pause_s = attempts.pause_s_after(failure)
            if pause_s is None:
                self.reason = attempts.final
                return exit_codes.of(failure)
            await self._publish(WAITING)
            await self._back_off(failure, pause_s)
            self.restarts += 1

    async def _back_off(self, failure: Failure, pause_s: float) -> None:
        """Wait, and show for what."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + pause_s
        for watch in self.watches:
            watch.failed(failure.text, pause_s)
        while (left_s := end_s - loop.time()) > 0 and not self._stop.is_set():
            self._show(self.watches)
            await self._pause(min(left_s, self._settings.look_every_s))

    async def _run_once(self) -> Failure | None:
        """Start the queries and watch them until one fails, all are done, or `stop` is called."""
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
        loop = asyncio.get_running_loop()
        lag_due_s = status_due_s = loop.time()
        while True:
            # Before the reports are read, so that they include what a query did before it ended.
            is_running = [query.isActive for query in queries]
            is_new = [
                watch.look(_reports(query))
                for watch, query in zip(self.watches, queries, strict=True)
            ]
            if any(is_new) or loop.time() >= lag_due_s or not any(is_running):
                await self._ask_lag()
                lag_due_s = loop.time() + self._settings.lag_every_s
            self._show(self.watches)
            if loop.time() >= status_due_s:
                await self._publish(RUNNING)
                status_due_s = loop.time() + self._settings.status_every_s
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

    async def _publish(self, state: str) -> None:
        if self._publisher is not None:
            loop = asyncio.get_running_loop()
            queries = list(zip(self.watches, self._lags, strict=True))
            await loop.run_in_executor(None, self._publisher.publish, state, queries, self.restarts)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        except TimeoutError:
            pass


async def run_all(runners: Sequence[Runner]) -> int:
    """Run them beside each other until SIGINT or SIGTERM. If one fails the others are stopped, and
    its exit code is returned."""
    loop = asyncio.get_running_loop()

    def stop_all_runs(by: int = 0) -> None:
        for runner in runners:
            runner.stop(by)

    async def run(runner: Runner) -> int:
        code = await runner.run_and_close()
        if code not in _ENDED:
            stop_all_runs()
        return code

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_all_runs, number)
    try:
        codes = await asyncio.gather(*map(run, runners))
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return max(codes, key=lambda code: (code not in _ENDED, code))


def _reports(query: "StreamingQuery") -> list[Any]:
    return [report_of(progress) for progress in query.recentProgress]
