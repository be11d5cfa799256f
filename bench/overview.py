"""`README.md` of the benchmarks: all goals of all pages, as a table and as one picture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import chart
from bench.goals import Goal, number
from bench.lines import Row, cells, header, mark

_TEXT = Path(__file__).parent / "how_to_read.md"


@dataclass(frozen=True)
class Section:
    """The rows of one page that have a goal."""

    name: str
    title: str
    date: str
    rows: list[Row]

    @property
    def by_goal(self) -> Mapping[Goal, list[Row]]:
        goals = dict.fromkeys(row.goal for row in self.rows if row.goal is not None)
        return {goal: [row for row in self.rows if row.goal == goal] for goal in goals}


def write(directory: Path, sections: Iterable[Section]) -> None:
    shown = [section for section in sections if section.by_goal]
    lines = ["# Benchmarks", "", _TEXT.read_text(), *_table(shown)]
    (directory / "README.md").write_text("\n".join(lines) + "\n")
    chart.draw(directory / "goals.svg", [(s.title, _bars(s)) for s in shown])


def _table(sections: list[Section]) -> Iterable[str]:
    yield from header("", "Suwi", "Suwi / Kafka", "goal", "met")
    for section in sections:
        yield cells(f"**[{section.title}]({section.name}.md)**, {section.date}", "", "", "", "")
        for goal, rows in section.by_goal.items():
            ratios = range_of([row.ratio for row in rows], " ×")
            shares = range_of([100 * row.of_bound for row in rows if row.of_bound], " %")
            compared = f"{ratios}, {shares} of the bound" if shares else ratios
            met = [row.met for row in rows if row.met is not None]
            verdict = mark(all(met)) if met else ""
            if 0 < sum(met) < len(met):
                verdict = f"{sum(met)} of {len(met)}"
            yield cells(goal.text, _values(rows), compared, goal.wanted, verdict)


def _values(rows: list[Row]) -> str:
    """Nothing if the rows have different units."""
    units = {row.unit for row in rows}
    return range_of([row.value for row in rows], f" {rows[0].unit}") if len(units) == 1 else ""


def range_of(values: Iterable[float | None], unit: str) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return ""
    low, high = number(min(found)), number(max(found))
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"


def _bars(section: Section) -> list[chart.Bar]:
    bars = []
    for goal, rows in section.by_goal.items():
        times = [row.ratio if goal.more else 1 / row.ratio for row in rows if row.ratio]
        if times:
            limit = goal.limit if goal.more else 1 / goal.limit
            is_met = all(row.met is not False for row in rows)
            bars.append(chart.Bar(goal.text, times, limit if goal.is_of_kafka else None, is_met))
    return bars
