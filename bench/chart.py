"""The picture of a run: how many times better or worse than Apache Kafka. Plain SVG, no library."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

_WIDTH, _LEFT, _RIGHT = 960, 350, 760
_ROW, _SECTION, _TOP = 24, 28, 84
_BETTER, _WORSE, _GOAL = "#2563a8", "#c2701c", "#b3261e"
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Bar:
    text: str
    times: list[float]
    """How many times better than Kafka each figure is: above 1 better, below 1 worse."""
    goal: float | None
    is_met: bool


def draw(path: Path, sections: Iterable[tuple[str, Sequence[Bar]]]) -> None:
    """A bar ends at the median of its figures, and each of them is a dot."""
    found = [(title, bars) for title, bars in sections if bars]
    ends = [times for _, bars in found for bar in bars for times in bar.times]
    low, high = min([0.5, *ends]) / 1.1, max([2, *ends]) * 1.1

    def x(times: float) -> float:
        return _LEFT + math.log(times / low) / math.log(high / low) * (_RIGHT - _LEFT)

    rows: list[str] = []
    y = _TOP
    for title, bars in found:
        rows.append(_text(20, y + 14, title, "font-weight='600'"))
        y += _SECTION
        for bar in bars:
            rows += _row(bar, y, x)
            y += _ROW
        y += 10
    title = _text(20, 28, "Suwi beside Apache Kafka: how many times better?", "font-size='17'")
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {y}' width='{_WIDTH}' "
        f"height='{y}' font-family='system-ui, sans-serif' font-size='13'>"
        f"<rect width='{_WIDTH}' height='{y}' fill='#ffffff'/>"
        f"{title}{''.join(_axis(x, low, high, y - 10))}{''.join(rows)}</svg>\n"
    )


def _axis(x: Scale, low: float, high: float, bottom: float) -> Iterable[str]:
    for times in _TICKS:
        if low <= times <= high:
            colour, width = ("#333", 1.5) if times == 1 else ("#e3e6ea", 1)
            yield _line(x(times), _TOP - 12, bottom, colour, width)
            name = "Kafka" if times == 1 else f"{times:g} ×"
            yield _text(x(times), _TOP - 18, name, "text-anchor='middle' fill='#555'")
    yield _text(x(1) - 8, _TOP - 38, "◀ worse", f"text-anchor='end' fill='{_WORSE}'")
    yield _text(x(1) + 8, _TOP - 38, "better ▶", f"fill='{_BETTER}'")
    yield _line(_RIGHT + 24, 15, 31, _GOAL, 3)
    yield _text(_RIGHT + 34, 28, "goal")


def _row(bar: Bar, y: float, x: Scale) -> Iterable[str]:
    middle = statistics.median(bar.times)
    left, right = sorted((x(1), x(middle)))
    yield _text(_LEFT - 12, y + 13, bar.text, "text-anchor='end'")
    yield (
        f"<rect x='{left:.1f}' y='{y + 3}' width='{max(1.0, right - left):.1f}' height='12' "
        f"fill='{_colour(middle)}' fill-opacity='0.4'/>"
    )
    if bar.goal is not None:
        yield _line(x(bar.goal), y, y + 18, _GOAL, 3)
    for times in bar.times:
        yield f"<circle cx='{x(times):.1f}' cy='{y + 9}' r='4' fill='{_colour(times)}'/>"
    mark, mark_colour = ("✓", "#2e7d32") if bar.is_met else ("✗", _GOAL)
    yield _text(_RIGHT + 14, y + 13, mark, f"fill='{mark_colour}' font-weight='600'")
    low, high = (f"{times:.3g}" for times in (min(bar.times), max(bar.times)))
    yield _text(_RIGHT + 34, y + 13, f"{low} ×" if low == high else f"{low} to {high} ×")


def _colour(times: float) -> str:
    return _BETTER if times >= 1 else _WORSE


def _text(x: float, y: float, text: str, more: str = "") -> str:
    colour = "" if "fill=" in more else "fill='#222' "
    return f"<text x='{x:.1f}' y='{y:.1f}' {colour}{more}>{escape(text)}</text>"


def _line(x: float, top: float, bottom: float, colour: str, width: float) -> str:
    return f"<path d='M {x:.1f} {top} V {bottom}' stroke='{colour}' stroke-width='{width}'/>"
