"""The page on consumer groups: as JSON, a table and a chart."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.goals import number
from bench.jobs import groups
from bench.measure import Figure
from bench.pages import Finding, Page, _header, _mark, _of, _row
from bench.panels import Panel, Row
from bench.plan import FULL, GROUPS, QUICK
from bench.servers import KAFKA, SUWI

_PLANS = [GROUPS[plan.name] for plan in (FULL, QUICK)]


@dataclass(frozen=True)
class Line:
    text: str
    job: str
    metric: str
    unit: str
    limit: float | None = None
    of_kafka: bool = False
    """The limit is one of the ratio to Kafka's, and more is better."""

    @property
    def wanted(self) -> str:
        if self.limit is None:
            return ""
        return f"≥ {self.limit:g} × Kafka" if self.of_kafka else f"≤ {self.limit:g} {self.unit}"


def _lines() -> Iterable[Line]:
    for plan in _PLANS:
        rebalance = groups.rebalance_job(plan.members)
        of = f"of {plan.members} members"
        yield Line(f"first generation {of}", rebalance, "form_s", "s", 2)
        yield Line(f"a rebalance {of}", rebalance, "rebalance_s", "s", 2)
        yield Line("another group's commits meanwhile, p99", rebalance, "commit_p99_ms", "ms")
        for count in (1, plan.committers):
            commits = groups.commits_job(plan.committers, count)
            name = f"commits of {plan.committers} committers of "
            name += "one group" if count == 1 else f"{count} groups"
            yield Line(name, commits, "commits_per_s", "/s", 1.0, of_kafka=True)
            yield Line(
                f"{name}: CPU of the broker for one", commits, "server_cpu_us_per_commit", "µs"
            )
        for count in plan.loaded:
            offsets = f"{count * groups.PARTITIONS:,} offsets of {count:,} groups"
            limit = 5 if count == 10_000 else None
            yield Line(f"cold load of {offsets}", groups.load_job(count), "load_s", "s", limit)
            yield Line("memory then", groups.load_job(count), "rss_mb", "MB")
        killed = groups.failover_job(plan.failed_over)
        name = f"{plan.failed_over:,} groups, coordinator killed, until the first commit"
        yield Line(name, killed, "first_commit_ms", "ms", 1_000)


def _met(line: Line, suwi: Figure, kafka: Figure | None) -> bool | None:
    if line.limit is None or (line.of_kafka and kafka is None):
        return None
    value = suwi.median(line.metric)
    if line.of_kafka:
        assert kafka is not None
        return value >= line.limit * kafka.median(line.metric)
    return value <= line.limit


def _found(figures: list[Figure]) -> Iterable[tuple[Line, Figure, Figure | None]]:
    suwi, kafka = _of(figures, SUWI), _of(figures, KAFKA)
    for line in dict.fromkeys(_lines()):
        if line.job in suwi and line.metric in suwi[line.job].values:
            yield line, suwi[line.job], kafka.get(line.job)


def _value(line: Line, figure: Figure | None) -> str:
    if figure is None or line.metric not in figure.values:
        return ""
    low, high = figure.middle_half(line.metric)
    return f"{number(figure.median(line.metric))} {line.unit} ({number(low)}–{number(high)})"


def _tables(figures: list[Figure]) -> Iterable[str]:
    yield from _header("", "Suwi", "Apache Kafka", "goal", "", "runs")
    for line, suwi, kafka in _found(figures):
        runs = str(len(suwi.values[line.metric]))
        met = _mark(_met(line, suwi, kafka))
        yield _row(line.text, _value(line, suwi), _value(line, kafka), line.wanted, met, runs)


def _findings(figures: list[Figure]) -> list[Finding]:
    return [
        Finding(
            f"{line.text}: {_value(line, suwi)}; Kafka {_value(line, kafka) or '-'} {line.wanted}",
            _met(line, suwi, kafka),
        )
        for line, suwi, kafka in _found(figures)
    ]


def _panels(figures: list[Figure]) -> list[Panel]:
    found = [line for line, _, _ in _found(figures)]
    by_unit = {"s": "Rebalances and loading", "ms": "Waiting", "/s": "Commits (more is better)"}
    return [
        Panel(
            title,
            unit,
            [Row(line.text, line.job, line.metric) for line in found if line.unit == unit],
        )
        for unit, title in by_unit.items()
    ]


GROUPS_PAGE = Page("groups", "Consumer groups", _tables, _findings, _panels)
