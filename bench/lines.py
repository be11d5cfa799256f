"""Pages whose table has a line for each value, with its goal: groups, transactions, the cluster."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.goals import number
from bench.measure import Figure
from bench.pages import Finding, Page, _header, _mark, _of, _row, _short
from bench.panels import Panel, Row
from bench.report import times
from bench.servers import KAFKA, SUWI


@dataclass(frozen=True)
class Line:
    """`limit` is the goal: of the value itself, or of its ratio to Kafka's."""

    text: str
    job: str
    metric: str
    unit: str
    limit: float | None = None
    of_kafka: bool = False
    more: bool = False
    """More is better."""
    worst: bool = False
    """The maximum instead of the median."""

    @property
    def wanted(self) -> str:
        if self.limit is None:
            return ""
        sign = "≥" if self.more else "≤"
        return f"{sign} {self.limit:,g} {'× Kafka' if self.of_kafka else self.unit}"

    def value(self, figure: Figure) -> float:
        return max(figure.values[self.metric]) if self.worst else figure.median(self.metric)

    def met(self, suwi: Figure, kafka: Figure | None) -> bool | None:
        """None without a goal, or without anything to compare with."""
        if self.limit is None:
            return None
        value = self.ratio(suwi, kafka) if self.of_kafka else self.value(suwi)
        if value is None:
            return None
        return value >= self.limit if self.more else value <= self.limit

    def ratio(self, suwi: Figure, kafka: Figure | None) -> float | None:
        if kafka is None or self.metric not in kafka.values:
            return None
        return self.value(suwi) / self.value(kafka)

    def shown(self, figure: Figure | None) -> str:
        if figure is None or self.metric not in figure.values:
            return ""
        value = f"{number(self.value(figure))} {self.unit}"
        if self.worst:
            return value
        low, high = figure.middle_half(self.metric)
        return f"{value} ({number(low)}–{number(high)})"


Lines = Callable[[], Iterable[Line]]


def line_page(
    name: str,
    title: str,
    lines: Lines,
    panels: Mapping[str, str],
    logarithmic_from: Mapping[str, float] | None = None,
) -> Page:
    """`panels`: the titles of the parts of the chart, by the unit of their lines; so are the values
    from which those with logarithmic bars start."""

    def found(figures: list[Figure]) -> Iterable[tuple[Line, Figure, Figure | None]]:
        suwi, kafka = _of(figures, SUWI), _of(figures, KAFKA)
        for line in dict.fromkeys(lines()):
            if line.job in suwi and line.metric in suwi[line.job].values:
                yield line, suwi[line.job], kafka.get(line.job)

    def tables(figures: list[Figure]) -> Iterable[str]:
        yield from _header("", "Suwi", "Apache Kafka", "Suwi / Kafka", "goal", "", "runs")
        for line, suwi, kafka in found(figures):
            runs = [len(f.values.get(line.metric, ())) for f in (suwi, kafka) if f is not None]
            count = "" if line.worst else ", ".join(map(str, dict.fromkeys(filter(None, runs))))
            values = (line.shown(suwi), line.shown(kafka), times(line.ratio(suwi, kafka)))
            met = _mark(line.met(suwi, kafka))
            yield _row(line.text, *values, line.wanted, met, count)

    def findings(figures: list[Figure]) -> list[Finding]:
        return [
            Finding(
                f"{line.text}: {line.shown(suwi)}; Kafka {line.shown(kafka) or '-'} {line.wanted}",
                line.met(suwi, kafka),
            )
            for line, suwi, kafka in found(figures)
        ]

    def panels_of(figures: list[Figure]) -> list[Panel]:
        drawn = [line for line, _, _ in found(figures) if not line.worst]
        return [
            Panel(
                heading,
                unit,
                [_bar(line) for line in drawn if line.unit == unit],
                (logarithmic_from or {}).get(unit),
            )
            for unit, heading in panels.items()
        ]

    return Page(name, title, tables, findings, panels_of)


def _bar(line: Line) -> Row:
    goal = None if line.of_kafka else line.limit
    return Row(_short(line.text), line.job, line.metric, goal=goal)
