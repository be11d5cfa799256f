"""Every callback of the event loop: its CPU, its wall time, and the names of the long ones.

`CallbackWatch.install` wraps `asyncio.Handle._run`, through which a loop runs everything: readable
sockets, timers, steps of tasks. A callback's CPU time is that of its thread, without waiting for
the disk, for a processor or for the GIL; its wall time includes all of that. Garbage collections
are not part of the CPU time of the callback in which they happened: their longest is apart.
A thread samples every few milliseconds what the loop is doing. It costs the loop next to nothing,
and a callback with the name "read from a connection" gets the name of the code that took long.
"""

import asyncio
import functools
import gc
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bench.goals import CALLBACK_MAX
from bench.measure import percentile
from bench.watch.heartbeat import Beats, Heartbeat

OVER_S = CALLBACK_MAX.limit / 1000
"""A callback that takes more CPU than this is a stall."""
_NAMED_FROM_S = 0.001
_SAMPLE_EVERY_S = 0.005
_NAMES_MAX = 5
_MOST = 0.7
_FRAMES_SHOWN = 5
_PACKAGE = "/suwi/"

Stack = tuple[str, ...]
"""Functions of the broker's own code on the stack, the outermost first."""


@dataclass
class Section:
    """What is recorded between `begin` and `end`."""

    cpu_s: "array[float]" = field(default_factory=lambda: array("f"))
    wall_s: "array[float]" = field(default_factory=lambda: array("f"))
    worst: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By name: the CPU of the longest, and its wall time."""
    gc_s_max: float = 0.0
    beats: Beats = field(default_factory=Beats)

    def note(self, name: str, cpu_s: float, wall_s: float) -> None:
        if cpu_s > self.worst.get(name, (0.0, 0.0))[0]:
            self.worst[name] = (cpu_s, wall_s)

    def as_json(self) -> dict[str, Any]:
        longest = sorted(self.worst.items(), key=lambda item: -item[1][0])[:_NAMES_MAX]
        return {
            "callbacks": len(self.cpu_s),
            "callback_max_ms": max(self.cpu_s, default=0.0) * 1000,
            "callback_p999_ms": percentile(self.cpu_s, 0.999) * 1000 if self.cpu_s else 0.0,
            "callbacks_over": sum(1 for cpu_s in self.cpu_s if cpu_s > OVER_S),
            "callback_wall_max_ms": max(self.wall_s, default=0.0) * 1000,
            "loop_cpu_s": sum(self.cpu_s),
            "gc_max_ms": self.gc_s_max * 1000,
            "worst": [
                {"name": name, "cpu_ms": cpu_s * 1000, "wall_ms": wall_s * 1000}
                for name, (cpu_s, wall_s) in longest
            ],
            **self.beats.as_json(),
        }


class CallbackWatch:
    def __init__(self) -> None:
        self._section = Section()
        self._heartbeat: Heartbeat | None = None
        self._thread_id = 0
        self._running_since = 0.0  # 0 between callbacks
        self._samples: list[Stack] = []
        self._gc_began_s = self._gc_s = 0.0

    def install(self) -> None:
        """From now on, for the one loop of this process."""
        asyncio.Handle._run = self._timed(asyncio.Handle._run)  # type: ignore[assignment, method-assign]
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._sample, name="bench-sampler", daemon=True).start()

    def begin(self) -> None:
        self._section = Section()

    def end(self) -> dict[str, Any]:
        section, self._section = self._section, Section()
        return section.as_json()

    # -- on the loop's thread ------------------------------------------------------------------

    def _timed(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        now, cpu = time.perf_counter, time.thread_time

        def timed(handle: asyncio.Handle) -> None:
            if self._heartbeat is None:
                self._begin_on(handle._loop)  # type: ignore[attr-defined]
            callback = handle._callback  # type: ignore[attr-defined]
            section = self._section
            self._gc_s = 0.0
            self._running_since = began_s = now()
            cpu_began_s = cpu()
            try:
                run(handle)
            finally:
                cpu_s = cpu() - cpu_began_s - self._gc_s
                wall_s = now() - began_s
                self._running_since = 0.0
                section.cpu_s.append(cpu_s)
                section.wall_s.append(wall_s)
                if cpu_s > _NAMED_FROM_S:
                    section.note(self._name(callback, cpu_s), cpu_s, wall_s)
                if self._samples:
                    self._samples = []

        return timed

    def _begin_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread_id = threading.get_ident()
        self._heartbeat = Heartbeat(loop, lambda due, late: self._section.beats.add(due, late))

    def _name(self, callback: object, cpu_s: float) -> str:
        name = callback_name(callback)
        if self._samples:
            name += f" in {culprit(self._samples)}"
        return name

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._gc_began_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._gc_began_s
            self._gc_s += took_s
            self._section.gc_s_max = max(self._section.gc_s_max, took_s)

    # -- beside it -----------------------------------------------------------------------------

    def _sample(self) -> None:
        while True:
            time.sleep(_SAMPLE_EVERY_S)
            since = self._running_since
            if since and time.perf_counter() - since > _SAMPLE_EVERY_S:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None and self._running_since == since:
                    self._samples.append(stack_of(frame))


def callback_name(callback: object) -> str:
    """The owner of a callback: a coroutine, a connection's protocol, a function."""
    while isinstance(callback, functools.partial) or hasattr(callback, "_callback"):
        # The second: the test kit's, around what belongs to one of its brokers.
        is_partial = isinstance(callback, functools.partial)
        callback = callback.func if is_partial else callback._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Future) and hasattr(owner, "get_coro"):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner)}"
    if isinstance(owner, asyncio.BaseTransport) and hasattr(owner, "get_protocol"):
        how = getattr(callback, "__name__", "").strip("_")
        return f"{type(owner.get_protocol()).__name__}: {how}"
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def stack_of(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        if _PACKAGE in code.co_filename:
            module = code.co_filename.rpartition(_PACKAGE)[2].removesuffix(".py")
            names.append(f"{module}.{getattr(code, 'co_qualname', code.co_name)}")
        frame = frame.f_back
    return tuple(reversed(names))


def culprit(samples: Sequence[Stack]) -> str:
    """The innermost functions that were nearly always on the stack, and the most frequent below.

    Several, because the sampler gets the GIL where the loop releases it: file access is seen too
    often.
    """
    common: Stack = ()
    while True:
        deeper = Counter(s[: len(common) + 1] for s in samples if len(s) > len(common))
        found, count = deeper.most_common(1)[0] if deeper else (common, 0)
        if count < _MOST * len(samples) or found[:-1] != common:
            break
        common = found
    leaf = Counter(s[-1] for s in samples if s).most_common(1)
    shown = common[-_FRAMES_SHOWN:]
    names = [*shown, *(name for name, _ in leaf if name not in shown)]
    return " > ".join(names) or "the standard library"
