"""The goals for one broker on one core, and whether a run met them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.jobs import latency, memory, raw, startup
from bench.measure import Figure
from bench.plan import KIB, MIB
from bench.servers import BOUND, SUWI

_COST = "server_cpu_us_per_request"


class Figures:
    """All figures of a run, found by job and system."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._figures = {(figure.job, figure.system): figure for figure in figures}

    def median(self, job: str, metric: str, system: str = SUWI) -> float:
        return self._figures[job, system].median(metric)

    def least(self, job: str, metric: str, system: str = SUWI) -> float:
        return self._figures[job, system].least(metric)

    def last(self, job: str, metric: str) -> float:
        return self._figures[job, SUWI].values[metric][-1]

    def growth(self, job: str, metric: str) -> float:
        """From the middle of a series to its end."""
        values = self._figures[job, SUWI].values[metric]
        return values[-1] - values[len(values) // 2]


@dataclass(frozen=True)
class Goal:
    text: str
    wanted: str
    value: Callable[[Figures], float]
    met: Callable[[float], bool]
    unit: str


@dataclass(frozen=True)
class Verdict:
    text: str
    wanted: str
    got: str
    met: bool


def _at_least(text: str, limit: float, unit: str, value: Callable[[Figures], float]) -> Goal:
    return Goal(text, f"≥ {limit:,g} {unit}", value, lambda got: got >= limit, unit)


def _at_most(text: str, limit: float, unit: str, value: Callable[[Figures], float]) -> Goal:
    return Goal(text, f"≤ {limit:,g} {unit}", value, lambda got: got <= limit, unit)


def _share_of_bound(batch_bytes: int) -> Callable[[Figures], float]:
    job = raw.produce_job(batch_bytes, "all")
    return lambda all_: all_.median(job, _COST, BOUND) / all_.median(job, _COST) * 100


def _best_share_of_bound(batch_bytes: int) -> Callable[[Figures], float]:
    """Other work can only add to a cost, so the least of each is nearest to what the code needs."""
    job = raw.produce_job(batch_bytes, "all")
    return lambda all_: all_.least(job, _COST, BOUND) / all_.least(job, _COST) * 100


def _per_core(job: str, metric: str) -> Callable[[Figures], float]:
    """The rate for a core that does nothing else: unlike wall time, free of waiting for others."""
    return lambda all_: all_.median(job, metric) / all_.median(job, "server_busy")


_16K, _1M = raw.produce_job(16 * KIB, "all"), raw.produce_job(MIB, "all")

GOALS = [
    _at_least(
        "raw produce, 16 KB batches",
        25,
        "k requests/s",
        lambda all_: all_.median(_16K, "requests_per_s") / 1000,
    ),
    _at_least(
        "the same per second of broker CPU",
        25,
        "k requests/s",
        lambda all_: _per_core(_16K, "requests_per_s")(all_) / 1000,
    ),
    _at_least(
        "the same, best of the repetitions",
        25,
        "k requests/s",
        lambda all_: 1000 / all_.least(_16K, _COST),
    ),
    _at_least(
        "raw produce, 16 KB batches, against recv + crc + pwrite alone",
        75,
        "%",
        _share_of_bound(16 * KIB),
    ),
    _at_least("the same, best of the repetitions of each", 75, "%", _best_share_of_bound(16 * KIB)),
    _at_least(
        "raw produce, 1 MB batches", 1, "GB/s", lambda all_: all_.median(_1M, "mb_per_s") / 1000
    ),
    _at_least(
        "the same per second of broker CPU",
        1,
        "GB/s",
        lambda all_: _per_core(_1M, "mb_per_s")(all_) / 1000,
    ),
    _at_least(
        "raw produce, 1 MB batches, against recv + crc + pwrite alone",
        75,
        "%",
        _share_of_bound(MIB),
    ),
    _at_least("the same, best of the repetitions of each", 75, "%", _best_share_of_bound(MIB)),
    _at_least(
        "raw fetch from page cache",
        1.5,
        "GB/s",
        lambda all_: all_.median(raw.FETCH_JOB, "gb_per_s"),
    ),
    _at_most(
        "end to end latency, librdkafka, p50",
        0.5,
        "ms",
        lambda all_: all_.median(latency.CLIENT_JOB, "p50_ms"),
    ),
    _at_most(
        "end to end latency, raw sockets, p50",
        0.5,
        "ms",
        lambda all_: all_.median(latency.RAW_JOB, "p50_ms"),
    ),
    _at_most(
        "start to first acknowledged produce",
        300,
        "ms",
        lambda all_: all_.median(startup.JOB, "first_ack_ms"),
    ),
    _at_most(
        "memory of an idle broker", 60, "MB", lambda all_: all_.median(memory.IDLE_JOB, "rss_mb")
    ),
    _at_most("idle CPU", 2, "%", lambda all_: all_.median(memory.IDLE_JOB, "cpu_percent")),
    _at_most(
        "memory of an idle connection",
        20,
        "KB",
        lambda all_: all_.median(memory.CONNECTIONS_JOB, "kb_each"),
    ),
    _at_most(
        "produce cost beside idle connections",
        1.1,
        "×",
        lambda all_: all_.median(memory.CONNECTIONS_JOB, "produce_cpu_ratio"),
    ),
    _at_most(
        "memory after traffic", 60, "MB", lambda all_: all_.last(memory.TRAFFIC_JOB, "rss_mb")
    ),
    _at_most(
        "growth over the second half of the traffic",
        1,
        "MB",
        lambda all_: all_.growth(memory.TRAFFIC_JOB, "rss_mb"),
    ),
]


def judge(figures: Iterable[Figure]) -> list[Verdict]:
    """Every goal that this run has figures for."""
    found = Figures(figures)
    verdicts = []
    for goal in GOALS:
        try:
            value = goal.value(found)
        except KeyError:
            continue
        got = f"{value:,.3g} {goal.unit}"
        verdicts.append(Verdict(goal.text, goal.wanted, got, goal.met(value)))
    return verdicts
