"""The picture of a run: bars for each job, a mark where its goal lies. Plain SVG, no library."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.jobs import clients, latency, memory, raw, startup
from bench.measure import Figure
from bench.plan import KIB, MIB
from bench.servers import BOUND, MOCK, SUWI

COLOURS = {SUWI: "#2563a8", MOCK: "#b8c4d0", BOUND: "#d9a441"}
_WIDTH, _LABEL_WIDTH, _BAR_WIDTH = 900, 270, 480
_BAR, _GAP, _GROUP_GAP, _TITLE = 16, 3, 12, 34
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True)
class Row:
    label: str
    job: str
    metric: str
    scale: float = 1.0
    goal: float | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    rows: list[Row]


PANELS = [
    Panel(
        "Broker CPU for one produce request (less is better)",
        "µs",
        [
            Row("1 KB batch", raw.produce_job(KIB, "all"), "server_cpu_us_per_request"),
            Row(
                "16 KB batch",
                raw.produce_job(16 * KIB, "all"),
                "server_cpu_us_per_request",
                goal=40,
            ),
        ],
    ),
    Panel(
        "Raw throughput (more is better)",
        "MB/s",
        [
            Row("produce, 16 KB batches", raw.produce_job(16 * KIB, "all"), "mb_per_s"),
            Row("produce, 1 MB batches", raw.produce_job(MIB, "all"), "mb_per_s", goal=1000),
            Row("fetch from page cache", raw.FETCH_JOB, "gb_per_s", scale=1000, goal=1500),
        ],
    ),
    Panel(
        "librdkafka from Python, acks=all (more is better)",
        "thousand records/s",
        [
            Row("produce, 1 KB", clients.produce_job(1_000, "acks=all"), "records_per_s", 1e-3),
            Row("produce, 100 B", clients.produce_job(100, "acks=all"), "records_per_s", 1e-3),
            Row("consume, 1 KB", clients.consume_job(1_000), "records_per_s", 1e-3),
            Row("consume, 100 B", clients.consume_job(100), "records_per_s", 1e-3),
        ],
    ),
    Panel(
        "End to end latency at low load (less is better)",
        "ms",
        [
            Row("librdkafka, p50", latency.CLIENT_JOB, "p50_ms", goal=0.5),
            Row("librdkafka, p99", latency.CLIENT_JOB, "p99_ms"),
            Row("raw sockets, p50", latency.RAW_JOB, "p50_ms", goal=0.5),
            Row("raw sockets, p99", latency.RAW_JOB, "p99_ms"),
        ],
    ),
    Panel(
        "Start of the process (less is better)",
        "ms",
        [
            Row("to the first acknowledged produce", startup.JOB, "first_ack_ms", goal=300),
            Row("of it: bare Python", startup.JOB, "bare_interpreter_ms"),
            Row("of it: imports", startup.JOB, "imports_ms"),
        ],
    ),
    Panel(
        "Resident memory (less is better)",
        "MB",
        [
            Row("idle", memory.IDLE_JOB, "rss_mb", goal=60),
            Row("after all traffic", memory.TRAFFIC_JOB, "rss_mb", goal=60),
        ],
    ),
]


def draw(path: Path, figures: Iterable[Figure]) -> None:
    found = {(figure.job, figure.system): figure for figure in figures}
    parts: list[str] = []
    top = 44
    for panel in PANELS:
        drawn, top = _panel(panel, found, top)
        parts += drawn
    legend = "".join(_legend(number, system) for number, system in enumerate(COLOURS))
    legend += _goal_mark(470, 14, 18) + "<text x='478' y='28' fill='#222'>goal</text>"
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{top}' "
        f"viewBox='0 0 {_WIDTH} {top}' {_FONT} font-size='13'>"
        f"<rect width='{_WIDTH}' height='{top}' fill='#ffffff'/>"
        f"{legend}{''.join(parts)}</svg>\n"
    )


def _legend(number: int, system: str) -> str:
    left = 20 + number * 150
    return (
        f"<rect x='{left}' y='16' width='14' height='14' fill='{COLOURS[system]}'/>"
        f"<text x='{left + 20}' y='28' fill='#222'>{system}</text>"
    )


def _goal_mark(x: float, top: int, height: int) -> str:
    return f"<path d='M {x:.1f} {top} v {height}' stroke='#b3261e' stroke-width='2'/>"


def _panel(panel: Panel, found: dict[tuple[str, str], Figure], top: int) -> tuple[list[str], int]:
    rows = [
        (row, {s: found[row.job, s] for s in COLOURS if (row.job, s) in found})
        for row in panel.rows
    ]
    rows = [
        (row, shown) for row, shown in rows if any(row.metric in f.values for f in shown.values())
    ]
    if not rows:
        return [], top
    longest = max(
        max(row.goal or 0.0, *(_high(figure, row) for figure in shown.values()))
        for row, shown in rows
    )
    parts = [
        (
            f"<text x='20' y='{top + 18}' font-weight='600' fill='#111'>{escape(panel.title)}"
            f"<tspan font-weight='400' fill='#666'>, {escape(panel.unit)}</tspan></text>"
        )
    ]
    top += _TITLE
    for row, shown in rows:
        height = len(shown) * (_BAR + _GAP)
        parts.append(
            f"<text x='{_LABEL_WIDTH - 10}' y='{top + height / 2 + 3}' text-anchor='end' "
            f"fill='#333'>{escape(row.label)}</text>"
        )
        parts += [
            _bar(row, figure, system, top + number * (_BAR + _GAP), longest)
            for number, (system, figure) in enumerate(shown.items())
        ]
        if row.goal is not None:
            parts.append(_goal_mark(_x(row.goal, longest), top - 3, height + 3))
        top += height + _GROUP_GAP
    return parts, top + 8


def _x(value: float, longest: float) -> float:
    return _LABEL_WIDTH + value / longest * _BAR_WIDTH


def _high(figure: Figure, row: Row) -> float:
    return max(figure.middle_half(row.metric)[1], figure.median(row.metric)) * row.scale


def _bar(row: Row, figure: Figure, system: str, y: int, longest: float) -> str:
    value = figure.median(row.metric) * row.scale
    end = max(_LABEL_WIDTH + 1.0, _x(value, longest))
    low, high = (_x(end * row.scale, longest) for end in figure.middle_half(row.metric))
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    middle = y + _BAR / 2
    text_at = max(end, high) + 8
    if row.goal is not None and -8 < _x(row.goal, longest) - text_at < 45:
        text_at = _x(row.goal, longest) + 8  # beyond the mark, not across it
    return (
        f"<rect x='{_LABEL_WIDTH}' y='{y}' width='{end - _LABEL_WIDTH:.1f}' "
        f"height='{_BAR}' fill='{COLOURS[system]}'/>"
        f"<path d='M {low:.1f} {middle} H {high:.1f}' stroke='#111' stroke-opacity='0.45'/>"
        f"<text x='{text_at:.1f}' y='{y + 12.5}' fill='#222'>{text}</text>"
    )
