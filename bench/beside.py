"""One piece of work and what others record meanwhile.

A section lasts from `begin` to `end` of all recorders: `ping` (a small producer), `loop` (a
monitored broker) and `idle` (the heartbeat of an idle process).
"""

import time
import traceback
from collections.abc import Callable
from typing import Any

from bench.clients import Metrics
from bench.measure import Figure, percentile, take_turns
from bench.plan import StallPlan
from bench.recorders import Recorder
from bench.watch.heartbeat import own_lateness_s

_AROUND_S = 0.3  # before the work and at least after it

Recorders = dict[str, Recorder]
Heard = dict[str, dict[str, Any]]
Once = Callable[[], tuple[Metrics, str]]
"""The numbers of one repetition, and the name of the longest callback."""


def recorded(
    recorders: Recorders, work: Callable[[], object], section_s_min: float
) -> tuple[Heard, float]:
    """What was recorded during the work, and its duration."""
    for recorder in recorders.values():
        recorder.begin()
    began = time.perf_counter()
    time.sleep(_AROUND_S)
    start = time.perf_counter()
    work()
    took_s = time.perf_counter() - start
    time.sleep(max(_AROUND_S, section_s_min - (time.perf_counter() - began)))
    return {name: recorder.end() for name, recorder in recorders.items()}, took_s


def beside(
    recorders: Recorders, work: Callable[[], object], section_s_min: float
) -> tuple[Metrics, str]:
    """First the control, without work, then the work."""
    control, _ = recorded({"ping": recorders["ping"]}, lambda: None, section_s_min)
    heard, took_s = recorded(recorders, work, section_s_min)
    metrics = {
        "work_s": took_s,
        "control_p999_ms": control["ping"]["p999_ms"],
        "control_max_ms": control["ping"]["max_ms"],
        **metrics_of(heard),
    }
    return metrics, worst(heard)


def metrics_of(heard: Heard) -> Metrics:
    """The numbers of a section, of all recorders."""
    metrics: Metrics = {}
    if "ping" in heard:
        metrics |= {f"ping_{name}": value for name, value in heard["ping"].items()}
    if "loop" in heard:
        loop = heard["loop"]
        metrics |= {name: value for name, value in loop.items() if isinstance(value, int | float)}
        metrics |= _heartbeat(loop, heard["idle"])
    return metrics


def _heartbeat(loop: dict[str, Any], idle: dict[str, Any]) -> Metrics:
    late = [(due, late) for due, late in loop["late"]]
    idle_late = [(due, late) for due, late in idle["late"]]
    own_ms = [own * 1000 for own in own_lateness_s(late, idle_late)]
    own_ms += [0.0] * max(1, loop["beats"] - len(own_ms))
    return {
        "beat_max_ms": max((late for _, late in late), default=0.0) * 1000,
        "idle_beat_max_ms": max((late for _, late in idle_late), default=0.0) * 1000,
        "own_beat_max_ms": max(own_ms),
        "own_beat_p999_ms": percentile(own_ms, 0.999),
    }


def worst(heard: Heard) -> str:
    """The name of the longest callback, if it was long enough to get one."""
    found = heard.get("loop", {}).get("worst", [])
    return found[0]["name"] if found else ""


def take_all(
    job: str, system: str, plan: StallPlan, once: Once, *, warm_ups: int = 0
) -> list[Figure]:
    """All repetitions of one kind. If one fails, the figure has no values but the reason."""
    notes: list[str] = []

    def run() -> Metrics:
        metrics, note = once()
        notes.append(note)
        return metrics

    try:
        (figure,) = take_turns(job, {system: run}, plan.repetitions, warm_ups=warm_ups)
    except (OSError, RuntimeError, AssertionError) as error:
        traceback.print_exc()
        return [Figure(job, system, notes=[repr(error)])]
    figure.notes = notes[warm_ups:]
    return [figure]
