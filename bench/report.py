"""What a run leaves behind: `results.json` with everything, `README.md` with tables."""

import json
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import libversion

from bench.goals import Verdict
from bench.measure import Figure
from suwi import __version__

# Metric, heading, format: what the tables show, where a figure has it.
COLUMNS = [
    ("requests_per_s", "requests/s", "{:,.0f}"),
    ("records_per_s", "records/s", "{:,.0f}"),
    ("mb_per_s", "MB/s", "{:,.0f}"),
    ("gb_per_s", "GB/s", "{:.2f}"),
    ("server_cpu_us_per_request", "server CPU µs/request", "{:,.1f}"),
    ("server_cpu_s_per_million", "server CPU s/million records", "{:.2f}"),
    ("server_system_share", "of it in the kernel", "{:.0%}"),
    ("server_busy", "server busy", "{:.0%}"),
    ("p50_ms", "p50 ms", "{:.2f}"),
    ("p99_ms", "p99 ms", "{:.2f}"),
    ("p999_ms", "p99.9 ms", "{:.2f}"),
    ("acknowledged_p50_ms", "ack p50 ms", "{:.2f}"),
    ("first_ack_ms", "first ack ms", "{:.0f}"),
    ("listening_ms", "listening ms", "{:.0f}"),
    ("bare_interpreter_ms", "bare Python ms", "{:.0f}"),
    ("imports_ms", "imports ms", "{:.0f}"),
    ("listening_to_ack_ms", "listening to ack ms", "{:.0f}"),
    ("cpu_ms", "CPU ms", "{:.0f}"),
    ("rss_mb", "resident MB", "{:.1f}"),
    ("cpu_percent", "CPU %", "{:.2f}"),
    ("kb_each", "KB each", "{:.1f}"),
    ("produce_cpu_ratio", "produce cost beside them", "{:.2f} ×"),
]
# The metric whose spread stands for the figure's.
_MAIN = ("server_cpu_us_per_request", "server_cpu_s_per_million", "p50_ms", "first_ack_ms")


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "librdkafka": libversion()[0],
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def write(
    directory: Path,
    plan: str,
    about: dict[str, object],
    figures: list[Figure],
    verdicts: list[Verdict],
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    results: dict[str, object] = {
        "suwi": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "plan": plan,
        "machine": about,
        "goals": [vars(verdict) for verdict in verdicts],
        "figures": [figure.as_json() for figure in figures],
    }
    (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "README.md").write_text(_markdown(results, figures, verdicts))


_HOW_TO_READ = (
    "Written by `make bench` from `results.json`. Medians over the repetitions. One broker, one "
    "partition, loopback; the systems take turns. *Server CPU* is what the server's process used, "
    "which a busy machine changes less than wall time; *least* is its lowest value and ± half the "
    "range of its middle half (for latency and start-up: of the first time in the row). "
    "*librdkafka mock* is librdkafka's in-memory mock cluster (C, nothing is checked or stored). "
    "*bound* is recv, CRC-32C and pwrite (for fetch: sendfile) in a bare loop: the least that any "
    "server must do."
)


def _markdown(results: dict[str, object], figures: list[Figure], verdicts: list[Verdict]) -> str:
    about = results["machine"]
    assert isinstance(about, dict)
    setting = (
        f"Suwi {results['suwi']}, {results['date']}, plan `{results['plan']}`: "
        f"{about['cores']} cores ({about['processor']}), {about['memory_gb']} GB, "
        f"{about['system']}, Python {about['python']}, librdkafka {about['librdkafka']}; "
        f"load of other work at the start {about['load_at_start']}."
    )
    lines = [
        "# Benchmarks",
        "",
        setting,
        "",
        _HOW_TO_READ,
        "",
        "![Results](results.svg)",
        "",
        "## Goals",
        "",
        "| goal | wanted | got | |",
        "|---|---|---|---|",
    ]
    lines += [f"| {v.text} | {v.wanted} | {v.got} | {'✓' if v.met else '✗'} |" for v in verdicts]
    for job in dict.fromkeys(figure.job for figure in figures):
        lines += ["", f"## {job[0].upper()}{job[1:]}", ""]
        lines += _table([figure for figure in figures if figure.job == job])
    return "\n".join(lines) + "\n"


def _table(figures: list[Figure]) -> Iterable[str]:
    columns = [c for c in COLUMNS if any(c[0] in figure.values for figure in figures)]
    yield "| system | " + " | ".join(heading for _, heading, _ in columns) + " | least | ± | runs |"
    yield "|---" * (len(columns) + 4) + "|"
    for figure in figures:
        cells = [
            text.format(figure.median(metric)) if metric in figure.values else ""
            for metric, _, text in columns
        ]
        main = next((metric for metric in _MAIN if metric in figure.values), None)
        spread = f"{figure.spread(main):.0%}" if main else ""
        runs = max(len(values) for values in figure.values.values())
        least = f"{figure.least(main):,.3g}" if main else ""
        yield f"| {figure.system} | {' | '.join(cells)} | {least} | {spread} | {runs} |"


def show(verdicts: list[Verdict]) -> None:
    """The goals, for whoever waits at the terminal."""
    for verdict in verdicts:
        mark = "met   " if verdict.met else "MISSED"
        sys.stdout.write(f"{mark} {verdict.text}: {verdict.got} (wanted {verdict.wanted})\n")
