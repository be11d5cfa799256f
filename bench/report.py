"""The results of a run as JSON, where it was measured, and a table of the figures of each job."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import libversion

from bench.measure import CORE_SPEED, Figure, figure_from_json
from compat.kafka import KAFKA_VERSION
from suwi import __version__

# Metric, heading, format: the columns of the tables, for figures that have them.
COLUMNS = [
    ("requests_per_s", "requests/s", "{:,.0f}"),
    ("records_per_s", "records/s", "{:,.0f}"),
    ("mb_per_s", "MB/s", "{:,.0f}"),
    ("gb_per_s", "GB/s", "{:.2f}"),
    ("server_cpu_us_per_request", "server CPU µs/request", "{:,.1f}"),
    ("server_cpu_s_per_million", "server CPU s/million records", "{:.2f}"),
    ("server_system_share", "of it in the kernel", "{:.0%}"),
    ("server_busy", "server busy", "{:.0%}"),
    ("client_busy", "client busy", "{:.0%}"),
    ("server_cpu_s", "server CPU s", "{:.2f}"),
    ("wall_s", "wall s", "{:.2f}"),
    ("peak_rss_mb", "peak MB", "{:,.0f}"),
    ("p50_ms", "p50 ms", "{:.2f}"),
    ("p99_ms", "p99 ms", "{:.2f}"),
    ("p999_ms", "p99.9 ms", "{:.2f}"),
    ("first_ack_ms", "first ack ms", "{:.0f}"),
    ("listening_ms", "listening ms", "{:.0f}"),
    ("listening_to_ack_ms", "listening to ack ms", "{:.0f}"),
    ("cpu_ms", "CPU ms", "{:.0f}"),
    ("create_s", "to create s", "{:.1f}"),
    ("stop_s", "to stop s", "{:.1f}"),
    ("rss_mb", "resident MB", "{:,.1f}"),
    ("cpu_percent", "idle CPU %", "{:.2f}"),
]
# The metric whose spread is shown for the figure.
_MAIN = (
    "records_per_s",
    "gb_per_s",
    "p50_ms",
    "requests_per_s",
    "first_ack_ms",
    "rss_mb",
)


@dataclass(frozen=True)
class Results:
    plan: str
    machine: dict[str, Any]
    figures: list[Figure]
    suwi: str = __version__
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    remark: str = ""
    """Written by hand, where a part is of another run."""


def machine(kafka_missing: str | None) -> dict[str, Any]:
    return {
        "apache_kafka": f"not measured ({kafka_missing})" if kafka_missing else KAFKA_VERSION,
        "java": None if kafka_missing else _java(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "librdkafka": libversion()[0],
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _java() -> str:
    said = subprocess.run(["java", "-version"], stderr=subprocess.PIPE, text=True, check=True)
    found = re.search(r'"(.+)"', said.stderr)
    return found[1] if found else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def write_json(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "suwi": results.suwi,
        "date": results.date,
        **({"remark": results.remark} if results.remark else {}),
        "plan": results.plan,
        "machine": results.machine,
        "figures": [figure.as_json() for figure in results.figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> Results:
    """The results of an earlier run."""
    content = json.loads(path.read_text())
    figures = [figure_from_json(figure) for figure in content["figures"]]
    made = content["suwi"], content["date"], content.get("remark", "")
    return Results(content["plan"], content["machine"], figures, *made)


def _core_speed(figures: list[Figure]) -> str:
    """How much the speed of a core itself changed between runs, independent of the broker."""
    gauged = [ns for figure in figures for ns in figure.values.get(CORE_SPEED, ())]
    if not gauged:
        return ""
    return (
        f"\n\nThe speed of a core itself: before each of {len(gauged)} runs the same bare loop of "
        f"Python took {min(gauged):.0f} to {max(gauged):.0f} ns a pass, in the middle "
        f"{statistics.median(gauged):.0f}."
    )


def setting(results: Results) -> str:
    """Where and when it was measured."""
    about = results.machine
    return (
        f"Suwi {results.suwi}, {results.date}, plan `{results.plan}`: "
        f"{about['cores']} cores ({about['processor']}), {about['memory_gb']} GB, "
        f"{about['system']}, Python {about['python']}, librdkafka {about['librdkafka']}, "
        f"Apache Kafka {about['apache_kafka']}"
        + (f" on Java {about['java']}" if about["java"] else "")
        + f"; load of other work at the start {about['load_at_start']}."
        + (f" {results.remark}" if results.remark else "")
        + _core_speed(results.figures)
    )


def figure_tables(figures: list[Figure], jobs: Iterable[str]) -> Iterable[str]:
    """A table for each job, with all that was measured."""
    for job in dict.fromkeys(jobs):
        if not any(figure.job == job for figure in figures):
            continue
        yield from ["", f"## {job[0].upper()}{job[1:]}", ""]
        yield from _table([figure for figure in figures if figure.job == job])


def _table(figures: list[Figure]) -> Iterable[str]:
    columns = [c for c in COLUMNS if any(c[0] in figure.values for figure in figures)]
    yield "| system | " + " | ".join(heading for _, heading, _ in columns) + " | spread | runs |"
    yield "|---" * (len(columns) + 3) + "|"
    for figure in figures:
        cells = [
            text.format(figure.median(metric)) if metric in figure.values else ""
            for metric, _, text in columns
        ]
        main = next((metric for metric in _MAIN if metric in figure.values), None)
        spread = f"± {figure.spread(main):.0%}" if main else ""
        runs = max(len(values) for values in figure.values.values())
        yield f"| {figure.system} | {' | '.join(cells)} | {spread} | {runs} |"
