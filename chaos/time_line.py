"""A picture of one run: what a consumer read each second, and the faults beneath it, as SVG."""

import statistics
from collections.abc import Sequence
from html import escape

_WIDTH, _LEFT, _RIGHT = 1000, 210, 12
_TOP, _PLOT, _ROW = 30, 130, 18
_INK, _PALE, _GRID = "#333", "#777", "#e4e4e4"
_AREA, _FAULT, _RECOVERY = "#4878a8", "#c44e52", "#f0b8b0"
_TICKS_S = (5, 10, 30, 60, 120, 300, 600)
_TICKS_MAX = 12

Span = tuple[str, float, float, float]
"""Kind, begin and end of a fault, and when all replicas were in sync again, in seconds."""


def draw(per_second: Sequence[int], spans: Sequence[Span]) -> str:
    kinds = list(dict.fromkeys(kind for kind, *_ in sorted(spans, key=lambda span: span[1])))
    last_s = max([len(per_second), 1, *(back_s for *_, back_s in spans)])
    # What was held up arrives at once afterwards: that would make the rest small.
    most = _round_up(int(min(max([*per_second, 1]), 2 * statistics.median([*per_second, 1]) + 1)))
    bottom = _TOP + _PLOT
    rows_end = bottom + 10 + _ROW * len(kinds)
    height = rows_end + 24

    def x(at_s: float) -> float:
        return _LEFT + at_s / last_s * (_WIDTH - _LEFT - _RIGHT)

    def y(count: int) -> float:
        return bottom - min(count / most, 1.05) * _PLOT

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_legend(),
    ]
    for count in (0, most // 2, most):
        parts.append(_line(_LEFT, y(count), _WIDTH - _RIGHT, y(count)))
        parts.append(_text(_LEFT - 6, y(count) + 4, f"{count:,}", _PALE, "end"))
    step_s = next((s for s in _TICKS_S if last_s / s <= _TICKS_MAX), 1_200)
    for at_s in range(0, int(last_s) + 1, step_s):
        parts.append(_line(x(at_s), bottom, x(at_s), rows_end))
        parts.append(_text(x(at_s), height - 6, _clock(at_s), _PALE, "middle"))
    steps = "".join(
        f"{x(s):.1f},{y(n):.1f} {x(s + 1):.1f},{y(n):.1f} " for s, n in enumerate(per_second)
    )
    end = f"{x(len(per_second)):.1f},{bottom}"
    parts.append(f'<polygon fill="{_AREA}" points="{x(0):.1f},{bottom} {steps}{end}"/>')
    for row, kind in enumerate(kinds):
        top = bottom + 10 + _ROW * row
        mine = [span for span in spans if span[0] == kind]
        parts.append(_text(0, top + 11, f"{kind} ({len(mine)})"))
        for _, begin_s, end_s, back_s in mine:
            parts.append(_box(x(end_s), top + 3, x(back_s) - x(end_s), _RECOVERY))
            parts.append(_box(x(begin_s), top + 3, max(x(end_s) - x(begin_s), 2), _FAULT))
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts = [_text(0, 14, "records read per second")]
    left = _LEFT
    for color, what in ((_FAULT, "a fault"), (_RECOVERY, "until all replicas are in sync again")):
        parts += [_box(left, 4, 12, color), _text(left + 17, 14, what)]
        left += 75
    return parts


def _round_up(count: int) -> int:
    """To one that is easy to read."""
    unit = 10 ** (len(str(count)) - 1)
    return next(unit * times for times in (1, 2, 4, 6, 8, 10) if unit * times >= count)


def _clock(at_s: int) -> str:
    return f"{at_s // 60}:{at_s % 60:02}"


def _box(left: float, top: float, width: float, fill: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_ROW - 6}" '
        f'fill="{fill}"/>'
    )


def _line(left: float, top: float, right: float, bottom: float) -> str:
    places = f'x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"'
    return f'<line {places} stroke="{_GRID}"/>'


def _text(left: float, top: float, text: str, color: str = _INK, anchor: str = "start") -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" fill="{color}"'
    return f"<text {place}>{escape(text)}</text>"
