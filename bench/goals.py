"""The goals for one broker, and whether a run met them.

A goal is a value of a run, for Suwi and for Apache Kafka, and a limit: of Suwi's value
itself, or of its ratio to Kafka's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.jobs import (
    connections,
    failover,
    java,
    latency,
    librdkafka,
    memory,
    partitions,
    raw,
    restart,
    startup,
)
from bench.measure import Figure
from bench.plan import FULL, KIB, MIB, QUICK
from bench.servers import BOUND, KAFKA, SUWI

_COST = "server_cpu_us_per_request"


class Figures:
    """All figures of a run, found by job and system."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._figures = {(figure.job, figure.system): figure for figure in figures}

    def of(self, job: str, system: str) -> Figure:
        return self._figures[job, system]


Value = Callable[[Figures, str], float]


@dataclass(frozen=True)
class Goal:
    text: str
    unit: str
    value: Value
    more_is_better: bool
    limit: float
    of_kafka: bool  # the limit is one of the ratio to Kafka

    @property
    def wanted(self) -> str:
        sign = "≥" if self.more_is_better else "≤"
        return f"{sign} {self.limit:,g} {'× Kafka' if self.of_kafka else self.unit}"


@dataclass(frozen=True)
class Verdict:
    text: str
    wanted: str
    suwi: str
    kafka: str
    ratio: float | None  # Suwi's value by Kafka's
    met: bool
    advantage: float | None  # how many times better than Kafka, whichever way better is
    advantage_wanted: float | None


def _median(job: str, metric: str, scale: float = 1.0) -> Value:
    return lambda all_, system: all_.of(job, system).median(metric) * scale


def _share_of_bound(batch_bytes: int) -> Value:
    """Other work can only add to a cost, so the least of each is nearest to the code's own."""
    job = raw.produce_job(batch_bytes)
    return lambda all_, system: (
        all_.of(job, BOUND).least(_COST) / all_.of(job, system).least(_COST) * 100
    )


def _per_core(job: str, metric: str, scale: float) -> Value:
    """The rate per second of CPU time: unlike wall time, without waiting for others."""

    def value(all_: Figures, system: str) -> float:
        figure = all_.of(job, system)
        return figure.median(metric) / figure.median("server_busy") * scale

    return value


def _last(job: str, metric: str) -> Value:
    return lambda all_, system: all_.of(job, system).values[metric][-1]


def _growth(job: str, metric: str) -> Value:
    """From the middle of a series to its end."""

    def value(all_: Figures, system: str) -> float:
        values = all_.of(job, system).values[metric]
        return values[-1] - values[len(values) // 2]

    return value


def _by_partitions(metric: str, scale: float = 1.0, *, against_few: bool = False) -> Value:
    """Of the broker with many partitions, in any plan; optionally as a multiple of few."""

    def value(all_: Figures, system: str) -> float:
        for few, many in (FULL.partitions, QUICK.partitions):
            try:
                of_many = all_.of(partitions.job(many), system).median(metric) * scale
            except KeyError:
                continue
            few_value = all_.of(partitions.job(few), system).median(metric)
            return of_many / few_value if against_few else of_many
        raise KeyError(metric)

    return value


def _race(text: str, unit: str, limit: float, value: Value, *, more: bool = True) -> Goal:
    return Goal(text, unit, value, more, limit, of_kafka=True)


def _at_least(text: str, unit: str, limit: float, value: Value) -> Goal:
    return Goal(text, unit, value, more_is_better=True, limit=limit, of_kafka=False)


def _at_most(text: str, unit: str, limit: float, value: Value) -> Goal:
    return Goal(text, unit, value, more_is_better=False, limit=limit, of_kafka=False)


def _rate(text: str, job: str, limit: float) -> Goal:
    return _race(text, "k records/s", limit, _median(job, "records_per_s", 1e-3))


def _latency(driver: str, job: str) -> list[Goal]:
    text = f"end to end latency, {driver}"
    return [
        _at_most(f"{text}, p50", "ms", 0.5, _median(job, "p50_ms")),
        _race(f"{text}, p99", "ms", 0.5, _median(job, "p99_ms"), more=False),
    ]


_16K, _1M = raw.produce_job(16 * KIB), raw.produce_job(MIB)
_FIRST_ACK = _median(startup.JOB, "first_ack_ms")
_IDLE_MB, _LAST_MB = _median(startup.JOB, "rss_mb"), _last(memory.TRAFFIC_JOB, "rss_mb")

GOALS = [
    _rate("produce 1 KB, Java", java.produce_job(1_000), 1.2),
    _rate("produce 1 KB, librdkafka", librdkafka.produce_job(1_000), 1.2),
    _rate("produce 100 B in 16 KB batches, Java", java.produce_job(100), 1.0),
    _rate("produce 100 B in 16 KB batches, librdkafka", librdkafka.BATCHES_JOB, 1.0),
    _at_least("raw produce, 16 KB", "k requests/s", 25, _median(_16K, "requests_per_s", 1e-3)),
    _at_least(
        "the same per second of broker CPU",
        "k requests/s",
        25,
        _per_core(_16K, "requests_per_s", 1e-3),
    ),
    _at_least("raw produce, 16 KB, of the bare loop", "%", 75, _share_of_bound(16 * KIB)),
    _at_least("raw produce, 1 MB", "GB/s", 1, _median(_1M, "mb_per_s", 1e-3)),
    _at_least("the same per second of broker CPU", "GB/s", 1, _per_core(_1M, "mb_per_s", 1e-3)),
    _at_least("raw produce, 1 MB, of the bare loop", "%", 75, _share_of_bound(MIB)),
    _rate("consume 1 KB, Java", java.consume_job(1_000), 1.2),
    _rate("consume 100 B, Java", java.consume_job(100), 1.2),
    _rate("consume 1 KB, librdkafka", librdkafka.consume_job(1_000), 1.2),
    _rate("consume 100 B, librdkafka", librdkafka.consume_job(100), 1.2),
    _race("raw fetch from page cache", "GB/s", 1.2, _median(raw.FETCH_JOB, "gb_per_s")),
    _at_least("raw fetch from page cache", "GB/s", 1.5, _median(raw.FETCH_JOB, "gb_per_s")),
    *_latency("Java", latency.JAVA_JOB),
    *_latency("librdkafka", latency.CLIENT_JOB),
    *_latency("raw sockets", latency.RAW_JOB),
    _race("start to first acknowledged produce", "ms", 0.1, _FIRST_ACK, more=False),
    _at_most("start to first acknowledged produce", "ms", 300, _FIRST_ACK),
    _race("memory of an idle broker", "MB", 0.1, _IDLE_MB, more=False),
    _at_most("memory of an idle broker", "MB", 60, _IDLE_MB),
    _race("memory after all traffic", "MB", 0.1, _LAST_MB, more=False),
    _at_most("memory after all traffic", "MB", 60, _LAST_MB),
    _at_most(
        "growth over the second half of the traffic", "MB", 1, _growth(memory.TRAFFIC_JOB, "rss_mb")
    ),
    _at_most(
        "death of a leader until produce works again",
        "ms",
        500,
        _median(failover.JOB, "first_ack_ms"),
    ),
    _at_most("restart after kill -9", "s", 5, _median(restart.JOB, "first_ack_ms", 1e-3)),
    _at_most(
        "many partitions, produce p50", "× few", 1.2, _by_partitions("p50_ms", against_few=True)
    ),
    _at_most("many partitions, start", "s", 5, _by_partitions("first_ack_ms", 1e-3)),
    _at_most("many partitions, idle CPU", "%", 2, _by_partitions("cpu_percent")),
    _at_most("memory of an idle connection", "KB", 20, _median(connections.JOB, "kb_each")),
    _at_most(
        "produce beside idle connections",
        "× CPU",
        1.1,
        _median(connections.JOB, "produce_cpu_ratio"),
    ),
]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def check_goals(figures: Iterable[Figure]) -> list[Verdict]:
    """Every goal that this run has figures for."""
    found = Figures(figures)
    verdicts = []
    for goal in GOALS:
        suwi, kafka = _value(goal, found, SUWI), _value(goal, found, KAFKA)
        if suwi is not None and (kafka is not None or not goal.of_kafka):
            verdicts.append(_verdict_of(goal, suwi, kafka))
    return verdicts


def _value(goal: Goal, figures: Figures, system: str) -> float | None:
    try:
        return goal.value(figures, system)
    except KeyError:
        return None


def _verdict_of(goal: Goal, suwi: float, kafka: float | None) -> Verdict:
    ratio = suwi / kafka if kafka and kafka > 0 else None
    compared = ratio if goal.of_kafka else suwi
    assert compared is not None
    met = compared >= goal.limit if goal.more_is_better else compared <= goal.limit
    advantage = wanted = None
    if goal.of_kafka and ratio is not None:
        advantage, wanted = ratio, goal.limit
        if not goal.more_is_better:
            advantage, wanted = 1 / ratio, 1 / goal.limit
    return Verdict(
        text=goal.text,
        wanted=goal.wanted,
        suwi=f"{number(suwi)} {goal.unit}",
        kafka=f"{number(kafka)} {goal.unit}" if kafka is not None else "",
        ratio=ratio,
        met=met,
        advantage=advantage,
        advantage_wanted=wanted,
    )
