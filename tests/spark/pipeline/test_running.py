"""A run: watched, told of, started again after failures; with queries that do as they are told."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("yaml")
pytest.importorskip("pyspark")

from suwi.sim.clock import ManualClock
from suwi.spark import reason
from suwi.spark.delta.errors import SchemaMismatch
from suwi.spark.pipeline.failures import Kind, failure_of
from suwi.spark.pipeline.program import Program
from suwi.spark.pipeline.progress import Watch
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, run_all

FAST = RunSettings(retries=3, pause_s_min=0.001, pause_s_max=0.01, look_every_s=0.001)
WHERE = "orders: topic orders → /lake, "
PIPELINE = """\
name: orders
source: {servers: "127.0.0.1:1", topics: orders}
decode: string
sink: {delta: /lake}
checkpoint: /checkpoint
dead_letters: drop
"""


def report(batch: int, rows: int = 10, *, second: int | None = None) -> dict[str, Any]:
    return {
        "timestamp": f"2026-01-01T00:00:{batch if second is None else second:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 400, "triggerExecution": 500} if rows else {"latestOffset": 1},
        "sources": [{"endOffset": {"orders": {"0": (batch + 1) * 10}}}],
    }


class FakeQuery:
    """Ends by itself after its reports; with an error if it is given one."""

    def __init__(
        self, reports: int = 0, error: str | None = None, *, goes_on: bool = False
    ) -> None:
        self.recentProgress = [
            SimpleNamespace(json=json.dumps(report(number))) for number in range(reports)
        ]
        self.isActive = goes_on
        self.is_stopped = False
        self._error = error

    def exception(self) -> Exception | None:
        return None if self._error is None else RuntimeError(self._error)

    def stop(self) -> None:
        self.is_stopped = True


class FakeLag:
    def __init__(self) -> None:
        self.ends: list[Any] = []

    def reached(self, end: Any) -> None:
        self.ends.append(end)

    def behind(self) -> dict[str, int]:
        return {"orders-0": 0}

    def close(self) -> None:
        pass


class FakePublisher:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.is_closed = False

    def failed(self, text: str) -> None:
        self.told.append(text)

    def publish(self, state: str, queries: Any, restarts: int) -> None:
        ((watch, _),) = queries
        self.told.append((state, watch.batch, restarts))

    def close(self) -> None:
        self.is_closed = True


class World:
    """A run over a list of lives: each start takes the next."""

    def __init__(
        self,
        folder: Path,
        *lives: FakeQuery | tuple[FakeQuery, ...] | Exception,
        pipeline: str = PIPELINE,
    ) -> None:
        (folder / "pipeline.yaml").write_text(pipeline)
        self.lives = list(lives)
        self.said: list[str] = []
        self.lag = FakeLag()
        self.publisher = FakePublisher()
        self.shown: list[str] = []
        self.runner = Runner(
            read_pipeline(str(folder / "pipeline.yaml")),
            Program(build=None, start=self._start),  # type: ignore[arg-type]
            None,
            [self.lag] * (1 if pipeline == PIPELINE else 2),  # type: ignore[list-item]
            FAST,
            say=self.said.append,
            show=lambda watches: self.shown.append(watches[0].line()),
            publisher=self.publisher if pipeline == PIPELINE else None,  # type: ignore[arg-type]
        )

    def run(self, *, then: Callable[[], None] | None = None) -> int:
        async def run() -> int:
            if then is not None:
                asyncio.get_running_loop().call_later(0.05, then)
            return await self.runner.run()

        code = asyncio.run(run())
        self.said += [self.runner.reason] if self.runner.reason else []
        return code

    def _start(self, spark: object) -> list[Any]:
        life = self.lives.pop(0)
        if isinstance(life, Exception):
            raise life
        return list(life) if isinstance(life, tuple) else [life]


def test_a_run_that_is_done_ends_with_0_and_tells_where_it_is(tmp_path: Path) -> None:
    query = FakeQuery(reports=3)
    world = World(tmp_path, query)
    assert world.run() == 0
    (watch,) = world.runner.watches
    assert (watch.batches, watch.rows, watch.lag_total) == (3, 30, 0)
    assert world.lag.ends[-1] == {"orders": {"0": 30}}
    assert world.shown[-1] == WHERE + "batch 2, 30 rows, 20 rows/s, lag 0, last batch 0.5 s"


def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    failing = FakeQuery(error="ConnectionError: no broker")
    world = World(tmp_path, failing, FakeQuery(reports=1))
    assert world.run() == 0
    assert failing.is_stopped
    assert world.runner.restarts == 1
    assert world.said == ["ConnectionError: no broker; starting again in 0.001 s"]


def test_the_status_of_a_run_is_published_when_its_state_changes(tmp_path: Path) -> None:
    failing = FakeQuery(reports=1, error="OSError: no broker")
    world = World(tmp_path, failing, FakeQuery(error="suwi.spark.x.BadOption: no"))
    assert world.run() == 1
    assert world.publisher.told == [
        ("running", 0, 0),
        "OSError: no broker",
        ("waiting", 0, 0),
        ("running", 0, 1),
        "no",
        ("failed", 0, 1),
    ]
    assert world.publisher.is_closed


def test_a_run_that_is_done_is_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, FakeQuery(reports=1))
    assert world.run() == 0
    assert world.publisher.told == [("running", 0, 0), ("stopped", 0, 0)]


def test_after_too_many_failures_in_a_row_it_gives_up(tmp_path: Path) -> None:
    world = World(tmp_path, *(FakeQuery(error=f"OSError: {n}") for n in range(9)))
    assert world.run() == 1
    assert len(world.lives) == 9 - 4  # the first, and three more
    assert world.said[-1] == "failed, 4 times: OSError: 3"
    pauses = [text.rpartition(" in ")[2] for text in world.said[:-1]]
    assert pauses == ["0.001 s", "0.002 s", "0.004 s"]


def test_while_it_waits_the_line_says_so_and_for_what(tmp_path: Path) -> None:
    """Earlier it said that the first batch was under way."""
    world = World(tmp_path, FakeQuery(error="OSError: no broker"), FakeQuery(reports=1))
    assert world.run() == 0
    waiting = [line for line in world.shown if line.startswith(f"{WHERE}waiting ")]
    assert waiting[0].endswith(" s before the next start, after: OSError: no broker")
    assert "no broker" not in world.shown[-1]


def test_a_worker_that_spark_gave_too_little_time_uses_up_no_retries(tmp_path: Path) -> None:
    text = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat x"
    world = World(tmp_path, *(FakeQuery(error=text) for _ in range(9)), FakeQuery(reports=1))
    assert world.run() == 0
    assert world.runner.restarts == 9
    assert "a Python worker did not start within the 10 s that Spark allows" in world.said[0]


def test_a_batch_that_succeeds_begins_the_count_anew(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        *(FakeQuery(reports=1, error="OSError: again") for _ in range(9)),
        FakeQuery(reports=1),
    )
    assert world.run() == 0
    assert world.runner.restarts == 9
    assert world.runner.watches[0].batches == 10


def test_batches_of_another_query_do_not_begin_the_count_anew(tmp_path: Path) -> None:
    """Earlier a batch that always failed was tried for ever while dead letters were written."""
    lives = [
        (FakeQuery(error="OSError: poison"), FakeQuery(reports=1, goes_on=True)) for _ in range(9)
    ]
    world = World(tmp_path, *lives, pipeline=PIPELINE.replace("drop", "{topic: bad}"))
    assert world.run() == 1
    assert world.said[-1] == "failed, 4 times: OSError: poison"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            "…\nsuwi.spark.offsets.DataLoss: orders-0 begins at 7. Records were removed\n at x",
            4,
            "data lost: orders-0 begins at 7. Records were removed",
        ),
        (
            "…\nsuwi.spark.delta.errors.SchemaMismatch: column `id` is STRING\n",
            1,
            "failed: column `id` is STRING",
        ),
    ],
)
def test_what_does_not_pass_is_not_tried_again(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    world = World(tmp_path, FakeQuery(error=text), FakeQuery())
    assert world.run() == code
    assert world.said == [said]
    assert len(world.lives) == 1


def test_a_query_that_cannot_start_is_a_failure_like_another(tmp_path: Path) -> None:
    world = World(tmp_path, ValueError("mode='x'"), FakeQuery())
    assert world.run() == 1
    assert world.said == ["failed: mode='x'"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_a_run_and_stop_its_queries(tmp_path: Path, number: int, code: int) -> None:
    query = FakeQuery(reports=1, goes_on=True)
    world = World(tmp_path, query)
    assert world.run(then=lambda: os.kill(os.getpid(), number)) == code
    assert query.is_stopped


def test_a_signal_to_spark_and_the_run_is_no_failure_of_spark(tmp_path: Path) -> None:
    """A service manager tells all processes: Spark may be gone before the run hears of it."""

    class Gone(FakeQuery):
        def exception(self) -> Exception | None:
            os.kill(os.getpid(), signal.SIGTERM)
            return ConnectionError("Connection refused")

    world = World(tmp_path, Gone())
    assert world.run() == 0
    assert world.said == []


def test_if_one_of_several_runs_fails_the_others_are_stopped(tmp_path: Path) -> None:
    going, failing = FakeQuery(reports=1, goes_on=True), FakeQuery(error="SchemaMismatch")
    runners = [
        World(tmp_path, going).runner,
        World(tmp_path, SchemaMismatch("`n`"), failing).runner,
    ]
    assert asyncio.run(run_all(runners)) == 1
    assert going.is_stopped
    assert [runner.reason for runner in runners] == ["", "failed: `n`"]


def test_signals_end_all_runs(tmp_path: Path) -> None:
    queries = [FakeQuery(goes_on=True), FakeQuery(goes_on=True)]
    runners = [World(tmp_path, query).runner for query in queries]

    async def run() -> int:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        return await run_all(runners)

    assert asyncio.run(run()) == 130
    assert all(query.is_stopped for query in queries)


# -- one query ---------------------------------------------------------------------------------


def test_a_batch_is_counted_once_however_often_one_looks() -> None:
    watch = Watch("orders", ManualClock(0))
    assert watch.look([report(0), report(1)])
    assert not watch.look([report(0), report(1)])
    assert watch.look([report(1), report(2)])
    assert (watch.batches, watch.rows) == (3, 30)


def test_rows_that_came_too_late_are_told() -> None:
    watch = Watch("orders", ManualClock(0))
    states = [{"numRowsDroppedByWatermark": 3}, {"numRowsTotal": 7}]
    watch.look([report(0), {**report(1), "stateOperators": states}])
    assert watch.late_rows == 3
    assert ", 3 dropped as late, " in watch.line()


def test_a_failure_is_told_until_a_batch_is_done() -> None:
    clock = ManualClock(0)
    watch = Watch("orders", clock)
    watch.failed("no broker", 8)
    clock.advance(1500)
    assert watch.line() == "orders: waiting 7 s before the next start, after: no broker"
    watch.restarted()
    clock.advance(129_000)
    assert watch.line() == "orders: first batch under way for 129 s, last failure: no broker"
    watch.look([report(0)])
    assert "no broker" not in watch.line()


def test_the_age_is_that_of_the_last_sign_of_life() -> None:
    clock = ManualClock(1000)
    watch = Watch("orders", clock)
    assert watch.age_s is None
    assert watch.line() == "orders: first batch under way for 0 s"
    clock.advance(60_000)
    watch.lag = {"orders-0": 7}
    assert watch.line() == "orders: lag 7, first batch under way for 60 s"
    watch.lag = None
    watch.look([report(0, rows=0, second=1)])  # idle
    assert watch.line() == "orders: waiting for records"
    clock.advance(3500)
    assert watch.age_s == 3.5
    watch.look([report(0, second=2)])
    assert watch.age_s == 0
    assert (watch.batches, watch.end) == (1, {"orders": {"0": 10}})


def test_reports_of_a_restarted_query_are_taken_though_its_clock_went_back() -> None:
    watch = Watch("orders", ManualClock(0))
    watch.look([report(5)])
    watch.restarted()
    assert watch.look([report(3)])
    assert watch.batches == 2


def test_our_own_errors_are_found_in_sparks_text() -> None:
    text = """[STREAM_FAILED] Query [id = …] terminated with exception: Error in Python
  File "/x/planning.py", line 12, in plan_stream
suwi.spark.offsets.DataLoss: partitions are gone: a-1. Records were removed.
	at org.apache.spark.sql"""
    assert failure_of(RuntimeError(text)) == (
        Kind.DATA_LOST,
        "partitions are gone: a-1. Records were removed.",
    )
    assert failure_of(RuntimeError("[STREAM_FAILED] it broke\n\tat x")) == (
        Kind.PASSING,
        "it broke",
    )
    socket = '[CANNOT_OPEN_SOCKET] Can not open socket: ["tried to connect to … timed out"]'
    assert failure_of(RuntimeError(socket)).kind is Kind.BUSY
    text = "Traceback\n  File x\nsuwi.decoders.errors.RegistryUnavailable: answers 503\n"
    assert failure_of(RuntimeError(text)) == (Kind.PASSING, "answers 503")
    assert reason(RuntimeError(text)) == "answers 503"
    assert failure_of(SchemaMismatch("`id` is STRING")) == (Kind.LASTING, "`id` is STRING")
