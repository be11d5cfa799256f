"""The chart of a run: first how many times better than Apache Kafka, then bars for each job.

A red mark is the goal, the thin line the middle half of the repetitions. Plain SVG, no library.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.goals import Verdict, number
from bench.measure import Figure
from bench.panels import PANELS, Panel, Row
from bench.servers import BOUND, KAFKA, MOCK, SUWI

COLOURS = {SUWI: "#2563a8", KAFKA: "#5b6470", MOCK: "#c3ccd6", BOUND: "#d9a441"}
_WIDTH, _LEFT, _BAR_WIDTH = 900, 330, 460
_BAR, _GAP, _GROUP_GAP, _TITLE = 16, 3, 12, 34
_BEHIND = "#9dbbdb"  # Suwi, paler
_FONT = "font-family='system-ui, sans-serif'"


def draw(
    path: Path,
    figures: Iterable[Figure],
    verdicts: Iterable[Verdict] = (),
    panels: Iterable[Panel] = PANELS,
) -> None:
    found = {(figure.job, figure.system): figure for figure in figures}
    parts, top = _race([v for v in verdicts if v.advantage is not None], 44)
    for panel in panels:
        drawn, top = _panel(panel, found, top)
        parts += drawn
    seen = [system for system in COLOURS if any(system == each for _, each in found)]
    legend = "".join(_legend(place, system) for place, system in enumerate(seen))
    legend += _goal_mark(620, 14, 18) + _text(630, 28, "goal")
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{top}' "
        f"viewBox='0 0 {_WIDTH} {top}' {_FONT} font-size='13'>"
        f"<rect width='{_WIDTH}' height='{top}' fill='#ffffff'/>"
        f"{legend}{''.join(parts)}</svg>\n"
    )


def _text(x: float, y: float, text: str, more: str = "fill='#222'") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}</text>"


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y}' width='{max(1.0, width):.1f}' height='{height}' "
        f"fill='{colour}'/>"
    )


def _goal_mark(x: float, top: float, height: float) -> str:
    return f"<path d='M {x:.1f} {top} v {height}' stroke='#b3261e' stroke-width='2'/>"


def _legend(place: int, system: str) -> str:
    left = 20 + place * 150
    return _rect(left, 16, 14, 14, COLOURS[system]) + _text(left + 20, 28, system)


def _heading(top: int, title: str, unit: str) -> str:
    return (
        f"<text x='20' y='{top + 18}' font-weight='600' fill='#111'>{escape(title)}"
        f"<tspan font-weight='400' fill='#666'>, {escape(unit)}</tspan></text>"
    )


def _label(y: float, label: str) -> str:
    return _text(_LEFT - 10, y, label, "text-anchor='end' fill='#333'")


def _race(verdicts: list[Verdict], top: int) -> tuple[list[str], int]:
    """Bars to the right of 1 × if Suwi is better, to the left if Kafka is; logarithmic."""
    if not verdicts:
        return [], top
    ends = [math.log10(x) for v in verdicts for x in (v.advantage, v.advantage_wanted) if x]
    low, high = min(-0.35, *ends), max(0.35, *ends)

    def x(times: float) -> float:
        return _LEFT + (math.log10(times) - low) / (high - low) * _BAR_WIDTH

    parts = [_heading(top, "Suwi against Apache Kafka, 1 is a draw", "times better")]
    top += _TITLE
    bottom = top + len(verdicts) * (_BAR + 5)
    for times in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if low <= math.log10(times) <= high:
            colour = "#555" if times == 1 else "#e3e6ea"
            parts.append(f"<path d='M {x(times):.1f} {top - 4} V {bottom}' stroke='{colour}'/>")
            centred = "text-anchor='middle' fill='#666' font-size='11'"
            parts.append(_text(x(times), bottom + 12, f"{times:g} ×", centred))
    for row, verdict in enumerate(verdicts):
        assert verdict.advantage is not None
        assert verdict.advantage_wanted is not None
        y = top + row * (_BAR + 5)
        start, end = sorted((x(1), x(verdict.advantage)))
        colour = COLOURS[SUWI] if verdict.advantage >= 1 else _BEHIND
        parts.append(_label(y + 12.5, verdict.text))
        parts.append(_rect(start, y, end - start, _BAR, colour))
        parts.append(_goal_mark(x(verdict.advantage_wanted), y - 2, _BAR + 4))
        mark = "✓" if verdict.met else "✗"
        parts.append(_text(_LEFT + _BAR_WIDTH + 14, y + 12.5, f"{verdict.advantage:.3g} × {mark}"))
    return parts, bottom + 34


def _panel(panel: Panel, found: dict[tuple[str, str], Figure], top: int) -> tuple[list[str], int]:
    rows = []
    for row in panel.rows:
        shown = {s: found[row.job, s] for s in COLOURS if (row.job, s) in found}
        shown = {s: figure for s, figure in shown.items() if row.metric in figure.values}
        if shown:
            rows.append((row, shown))
    if not rows:
        return [], top
    longest = max(
        max(row.goal or 0.0, *(_high(figure, row) for figure in shown.values()))
        for row, shown in rows
    )
    scale = _Scale(longest, panel.logarithmic_from)
    parts = [_heading(top, panel.title, panel.unit)]
    top += _TITLE
    for row, shown in rows:
        height = len(shown) * (_BAR + _GAP)
        parts.append(_label(top + height / 2 + 3, row.label))
        parts += [
            _bar(row, figure, system, top + place * (_BAR + _GAP), scale)
            for place, (system, figure) in enumerate(shown.items())
        ]
        if row.goal is not None:
            parts.append(_goal_mark(scale.x(row.goal), top - 3, height + 3))
        top += height + _GROUP_GAP
    return parts, top + 8


@dataclass(frozen=True)
class _Scale:
    longest: float
    logarithmic_from: float | None

    def x(self, value: float) -> float:
        """Where a bar of this value ends."""
        if self.logarithmic_from is None:
            return _LEFT + value / self.longest * _BAR_WIDTH
        decades = math.log10(max(value, self.logarithmic_from) / self.logarithmic_from)
        all_decades = math.log10(max(1.01, self.longest / self.logarithmic_from))
        return _LEFT + decades / all_decades * _BAR_WIDTH


def _high(figure: Figure, row: Row) -> float:
    return max(figure.middle_half(row.metric)[1], figure.median(row.metric)) * row.scale


def _bar(row: Row, figure: Figure, system: str, y: int, scale: _Scale) -> str:
    value = figure.median(row.metric) * row.scale
    end = max(_LEFT + 1.0, scale.x(value))
    low, high = (scale.x(max(0, e) * row.scale) for e in figure.middle_half(row.metric))
    middle = y + _BAR / 2
    text_at = max(end, high) + 8
    if row.goal is not None and -8 < scale.x(row.goal) - text_at < 45:
        text_at = scale.x(row.goal) + 8  # beyond the mark, not across it
    return (
        _rect(_LEFT, y, end - _LEFT, _BAR, COLOURS[system])
        + f"<path d='M {low:.1f} {middle} H {high:.1f}' stroke='#111' stroke-opacity='0.45'/>"
        + _text(text_at, y + 12.5, number(value))
    )
