"""Figures: the measurements of one system in one job, over all repetitions."""

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass
class Figure:
    """The repetitions of one job on one system, metric by metric."""

    job: str
    system: str
    values: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Remarks of the repetitions."""

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(value)

    def median(self, metric: str) -> float:
        return statistics.median(self.values[metric])

    def middle_half(self, metric: str) -> tuple[float, float]:
        """The limits of the middle half of the values; of all of them if there are few."""
        values = self.values[metric]
        if len(values) < 4:
            return min(values), max(values)
        low, _, high = statistics.quantiles(values, n=4)
        return low, high

    def spread(self, metric: str) -> float:
        """Half the range of the middle half, as a share of the median."""
        low, high = self.middle_half(metric)
        median = self.median(metric)
        return (high - low) / 2 / abs(median) if median else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "job": self.job,
            "system": self.system,
            "metrics": {
                name: {
                    "median": _rounded(self.median(name)),
                    "min": _rounded(min(values)),
                    "max": _rounded(max(values)),
                    "values": [_rounded(value) for value in values],
                }
                for name, values in self.values.items()
            },
            **({"notes": self.notes} if self.notes else {}),
        }


def figure_from_json(data: dict[str, Any]) -> Figure:
    values = {name: list(metric["values"]) for name, metric in data["metrics"].items()}
    return Figure(data["job"], data["system"], values, list(data.get("notes", ())))


CORE_SPEED: Final = "core_ns"
_GAUGE_PASSES: Final = 300_000


def core_ns() -> float:
    """CPU time of one pass of a bare loop: the present speed of a core, independent of its load."""
    start = time.process_time()
    total = 0
    for number in range(_GAUGE_PASSES):
        total += number & 3
    return (time.process_time() - start) / _GAUGE_PASSES * 1e9


Run = Callable[[], Mapping[str, float]]


def take_turns(
    job: str,
    runs: Mapping[str, Run],
    repetitions: int,
    *,
    warm_ups: int = 1,
    s_max: float = math.inf,
) -> list[Figure]:
    """Run all systems once per repetition, one after another; the first rounds do not count.

    Every other round is in reverse order, so that what one leaves behind does not always affect the
    same. After `s_max` seconds no further round begins, but one that counts there always is.
    """
    figures = {system: Figure(job, system) for system in runs}
    started = time.perf_counter()
    for number in range(warm_ups + repetitions):
        if number > warm_ups and time.perf_counter() - started > s_max:
            print(f"{job}: {number - warm_ups} of {repetitions} in time", file=sys.stderr)
            break
        for system in list(runs)[:: -1 if number % 2 else 1]:
            speed = {CORE_SPEED: core_ns()}
            metrics = runs[system]()
            if number >= warm_ups:
                figures[system].add({**metrics, **speed})
    print(f"{job}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return list(figures.values())


def warm_page_cache(size_bytes: int) -> None:
    """Write this much and free it, just before a measurement needs that memory.

    A virtual machine may return freed memory to its host after a second or two. Writing to a new
    file then has to allocate every page, which costs several times as much as the write itself.
    """
    piece = bytes(1024 * 1024)
    with tempfile.TemporaryFile(prefix="suwi-bench-") as file:
        for position in range(0, size_bytes, len(piece)):
            os.pwrite(file.fileno(), piece, position)


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
