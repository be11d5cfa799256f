"""A picture of one run: what a consumer read each second, and the faults beneath it, as SVG."""

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _ROW, _LEFT = 1000, 160, 16, 190
_INK, _BAR, _FAULT, _RECOVERY = "#333", "#4878a8", "#c44e52", "#e8b9ba"

Span = tuple[str, float, float, float]
"""Kind, begin and end of a fault, and when all replicas were in sync again, in seconds."""


def draw(per_second: Sequence[int], spans: Sequence[Span]) -> str:
    kinds = sorted({kind for kind, *_ in spans})
    last_s = max([len(per_second), 1, *(back_s for *_, back_s in spans)])
    height = _HEIGHT + _ROW * (len(kinds) + 2)
    most = max([*per_second, 1])

    def x(at_s: float) -> float:
        return round(_LEFT + at_s / last_s * (_WIDTH - _LEFT), 1)

    box = f"0 0 {_WIDTH} {height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(0, 12, f"records read per second, at most {most:,}"),
    ]
    for second, count in enumerate(per_second):
        tall = round(count / most * (_HEIGHT - 20), 1)
        width = max(x(second + 1) - x(second), 0.5)
        parts.append(_box(x(second), _HEIGHT - tall, width, tall, _BAR))
    for row, kind in enumerate(kinds):
        top = _HEIGHT + _ROW * (row + 0.5)
        parts.append(_text(0, top + 11, kind))
        for _, begin_s, end_s, back_s in (span for span in spans if span[0] == kind):
            parts.append(_box(x(begin_s), top, max(x(end_s) - x(begin_s), 1.5), _ROW - 4, _FAULT))
            parts.append(_box(x(end_s), top, max(x(back_s) - x(end_s), 0), _ROW - 4, _RECOVERY))
    parts.append(_text(_LEFT, height - 4, "0 s"))
    parts.append(_text(_WIDTH - 40, height - 4, f"{last_s:.0f} s"))
    return "\n".join([*parts, "</svg>", ""])


def _box(left: float, top: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}"/>'
    )


def _text(left: float, top: float, text: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" font-size="11" fill="{_INK}">{escape(text)}</text>'
