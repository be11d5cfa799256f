"""Lines of a page: one value of a run for Suwi and Apache Kafka, and whether it meets its goal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.goals import Goal, number
from bench.measure import Figure
from bench.servers import BOUND, KAFKA, SUWI


@dataclass(frozen=True)
class Line:
    """Where a value is found: `job` and `metric` of the figures."""

    text: str
    job: str
    metric: str
    unit: str
    goal: Goal | None = None
    scale: float = 1.0
    worst: bool = False
    """The maximum instead of the median."""

    def value(self, figure: Figure | None) -> float | None:
        if figure is None or self.metric not in figure.values:
            return None
        found = max(figure.values[self.metric]) if self.worst else figure.median(self.metric)
        return found * self.scale

    def shown(self, figure: Figure | None) -> str:
        """The value, with the middle half of the repetitions."""
        value = self.value(figure)
        if value is None or figure is None:
            return ""
        text = f"{number(value)} {self.unit}"
        if self.worst:
            return text
        low, high = (number(end * self.scale) for end in figure.middle_half(self.metric))
        return f"{text} ({low}–{high})"


@dataclass(frozen=True)
class Row:
    """A line as a run has it."""

    text: str
    suwi: str
    kafka: str
    ratio: float | None = None
    """Suwi's value divided by Kafka's."""
    goal: Goal | None = None
    met: bool | None = None
    """None: without a goal, or without anything to compare with."""
    of_bound: float | None = None
    runs: str = ""
    value: float | None = None
    unit: str = ""

    @property
    def compared(self) -> str:
        if self.ratio is None:
            return ""
        share = f", {self.of_bound:.0%} of the bound" if self.of_bound is not None else ""
        return f"{self.ratio:.3g} ×{share}"

    @property
    def cells(self) -> list[str]:
        wanted = self.goal.wanted if self.goal is not None else ""
        return [self.text, self.suwi, self.kafka, self.compared, wanted, mark(self.met), self.runs]

    def __str__(self) -> str:
        """For the terminal."""
        verdict = {True: "met   ", False: "MISSED", None: "      "}[self.met]
        kafka = f"; Kafka {self.kafka}, {self.compared}" if self.kafka else ""
        wanted = f"; wanted {self.goal.wanted}" if self.goal is not None else ""
        return f"{verdict} {self.text}: {self.suwi}{kafka}{wanted}"


HEADER = ("", "Suwi", "Apache Kafka", "Suwi / Kafka", "goal", "", "runs")


def rows_of(lines: Iterable[Line], figures: Iterable[Figure]) -> list[Row]:
    """The lines that this run has figures of Suwi for."""
    found = {(figure.job, figure.system): figure for figure in figures}
    rows = []
    for line in dict.fromkeys(lines):
        suwi, kafka, bound = (found.get((line.job, system)) for system in (SUWI, KAFKA, BOUND))
        row = _row(line, suwi, kafka, bound)
        if row is not None:
            rows.append(row)
    return rows


def _row(line: Line, suwi: Figure | None, kafka: Figure | None, bound: Figure | None) -> Row | None:
    value, of_kafka, of_bound = map(line.value, (suwi, kafka, bound))
    if value is None:
        return None
    ratio = value / of_kafka if of_kafka else None
    goal = line.goal
    share = value / of_bound if of_bound and goal is not None and goal.or_of_bound else None
    met = None
    if goal is not None and (compared := ratio if goal.is_of_kafka else value) is not None:
        met = goal.is_met(compared) or (share is not None and share >= (goal.or_of_bound or 0))
    counts = [len(f.values.get(line.metric, ())) for f in (suwi, kafka) if f is not None]
    runs = "" if line.worst else ", ".join(map(str, dict.fromkeys(filter(None, counts))))
    shown = line.shown(suwi), line.shown(kafka)
    return Row(line.text, *shown, ratio, goal, met, share, runs, value, line.unit)


Lines = Callable[[], Iterable[Line]]


def cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def header(*texts: str) -> list[str]:
    return [cells(*texts), "|---" * len(texts) + "|"]


def mark(met: bool | None) -> str:
    return {True: "✓", False: "✗", None: ""}[met]


def table(rows: Iterable[Row]) -> list[str]:
    return [*header(*HEADER), *(cells(*row.cells) for row in rows)]
