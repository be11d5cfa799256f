"""Callbacks that block the loop are found and named, and distinguished from waiting."""

import asyncio
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.watch.callbacks import OVER_S, CallbackWatch, callback_name, culprit
from bench.watch.commands import MARK
from tests.broker_process import environment

ROOT = Path(__file__).parents[2]


def spin() -> None:
    """Uses twice as much CPU as is allowed."""
    until = time.thread_time() + 2 * OVER_S
    while time.thread_time() < until:
        pass


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], dict[str, Any]]:
    """Runs one callback on a monitored loop; returns what was recorded."""

    def run(callback: Callable[[], None]) -> dict[str, Any]:
        watch = CallbackWatch()
        monkeypatch.setattr(asyncio.Handle, "_run", watch._timed(asyncio.Handle._run))

        async def work() -> None:
            watch.begin()
            asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        asyncio.run(work())
        return watch.end()

    return run


def test_a_callback_that_takes_cpu_is_counted_and_named(watched: Any) -> None:
    recorded = watched(spin)
    assert recorded["callbacks_over"] == 1
    assert recorded["callback_max_ms"] >= 2 * OVER_S * 1000
    assert recorded["worst"][0]["name"] == "spin"


def test_a_callback_that_only_waits_takes_wall_time_and_no_cpu(watched: Any) -> None:
    recorded = watched(lambda: time.sleep(2 * OVER_S))
    assert recorded["callback_wall_max_ms"] >= 2 * OVER_S * 1000
    assert recorded["callbacks_over"] == 0


def test_a_task_is_named_by_its_coroutine(watched: Any) -> None:
    async def describe() -> None:
        spin()

    tasks = []
    recorded = watched(lambda: tasks.append(asyncio.ensure_future(describe())))
    assert recorded["worst"][0]["name"].startswith("task ")
    assert recorded["worst"][0]["name"].endswith("describe")


def test_a_partial_has_the_name_of_its_function() -> None:
    assert callback_name(functools.partial(functools.partial(spin))) == "spin"


def test_the_culprits_are_the_innermost_functions_that_were_nearly_always_at_work() -> None:
    samples = [("serve", "describe", step) for step in ("a", "b", "c", "c")]
    assert culprit(samples) == "serve > describe > c"
    assert culprit([tuple("abcdefg")]) == "c > d > e > f > g"
    assert culprit([(), ()]) == "the standard library"


def test_a_broker_runs_watched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.watch.broker", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data", str(tmp_path / "data"), "--log-level", "warning"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert any(line.startswith("stop with") for line in process.stdout)
            process.stdin.write("end\n")
            process.stdin.flush()
            answered = next(line for line in process.stdout if line.startswith(MARK))
        finally:
            process.terminate()
    recorded = json.loads(answered.removeprefix(MARK))
    assert recorded["callbacks"] > 0
    assert recorded["beats"] > 0
