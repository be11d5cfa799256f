"""Source, sink and table reader in one run, and the page and file with their figures."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bench import goals, report
from bench.base_env import ROOT
from bench.goals import Goal, number
from bench.lines import Row
from bench.overview import Section
from bench.spark.outputs import DECODED

_TEXT = Path(__file__).parents[1] / "how_to_read_spark.md"
_PARQUET, _BOUND = "parquet", "bound"
JOBS = ("source", "delta", "outputs", "decode", "table")
_OPTIONS = {"source": ["--repetitions=3"]}
_QUICK = {
    "source": ["--rows=100000", "--repetitions=1", "--codecs=none", "--cores=2"],
    "delta": ["--rows=200000", "--batch-rows=40000"],
    "outputs": ["--rows=200000", "--repetitions=1"],
    "decode": ["--rows=100000", "--repetitions=1"],
    "table": ["--rows=400000", "--repetitions=1"],
}


def measure(out: Path, jobs: Sequence[str], *, quick: bool) -> list[str]:
    """Run these jobs and write `spark.json` and `spark.md`; returns the jobs that failed. What
    other jobs have found before stays."""
    machine = report.machine("not asked for")
    results: dict[str, Any] = {
        **(_read(out) or {}),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {
            "pyspark": version("pyspark"),
            **{name: machine[name] for name in ("cores", "processor", "system", "python")},
        },
    }
    failed = []
    for job in jobs:
        figures = _run(job, (_QUICK if quick else _OPTIONS).get(job, []))
        if figures is None:
            failed.append(f"spark ({job})")
        else:
            results[job] = figures
    if not failed:
        write(out, results)
        for row in _rows(results):
            print(row)
        print(f"wrote {out / 'spark.json'}", file=sys.stderr)
    return failed


def _run(job: str, options: list[str]) -> list[dict[str, Any]] | None:
    with tempfile.TemporaryDirectory(prefix="suwi-bench-") as directory:
        found = Path(directory) / "figures.json"
        command = [sys.executable, "-m", f"bench.spark.{job}", *options, f"--json={found}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return None
        figures: list[dict[str, Any]] = json.loads(found.read_text())
        return figures


def write(out: Path, results: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "spark.json").write_text(json.dumps(results, indent=1) + "\n")
    redraw(out)


def _read(out: Path) -> dict[str, Any] | None:
    path = out / "spark.json"
    return json.loads(path.read_text()) if path.exists() else None


def redraw(out: Path) -> None:
    results = _read(out)
    if results and all(job in results for job in JOBS):
        (out / "spark.md").write_text(text_of(results))


def sections(out: Path) -> list[Section]:
    """For the overview of all goals."""
    results = _read(out)
    if results is None:
        return []
    return [Section("spark", "Spark", results["date"], _rows(results))]


def _rows(results: dict[str, Any]) -> list[Row]:
    """Of what was measured."""
    rows = []
    at_goal = _at_goal(results)
    if at_goal is not None:
        rows.append(_row(goals.SPARK_SOURCE, at_goal, "×"))
    if "delta" in results:
        sink, floor = _delta(results)
        rows.append(_row(goals.SPARK_SINK, sink["rows_per_s"], "rows/s"))
        rows += [_row(goals.SPARK_ICEBERG, ratio, "×") for _, _, ratio in _iceberg(results)]
        rows.append(_row(goals.SPARK_FLOOR, floor["floor_ms"], "ms"))
    rows += [
        _row(goals.SPARK_OUTPUTS, ratio, "×")
        for one, _, ratio in _outputs(results)
        if one["rows"] == DECODED
    ]
    rows += [_row(goals.SPARK_JSON, ratio, "×") for _, _, ratio in _json(results)]
    return [*rows, *map(_reader_row, _fastest(results.get("table", [])))]


def _row(goal: Goal, value: float, unit: str) -> Row:
    shown = f"{number(value)} {unit}"
    return Row(goal.text, shown, "", goal=goal, met=goal.is_met(value), value=value, unit=unit)


def _reader_row(read: "_Read") -> Row:
    return replace(
        _row(goals.SPARK_TABLE, read.ratio, "×"), of_bound=read.of_bound, met=read.is_met
    )


def _delta(results: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of large batches, and those of the smallest."""
    sink = next(each for each in results["delta"] if each["job"] != "floor")
    floor = next(each for each in results["delta"] if each["job"] == "floor")
    return sink, floor


def _iceberg(results: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """The same of an Iceberg table, and its rows/s by those of the Delta table; empty if it was not
    measured."""
    found = {each["job"]: each for each in results["delta"]}
    if "iceberg all" not in found:
        return []
    sink = found["iceberg all"]
    ratio = sink["rows_per_s"] / _delta(results)[0]["rows_per_s"]
    return [(sink, found["iceberg floor"], ratio)]


def _outputs(results: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """Two outputs of one read, two pipelines, and the ratio of their CPU; empty if it was not
    measured."""
    turns = results.get("outputs", [])
    return [
        (one, two, one["cpu_us_per_row"] / two["cpu_us_per_row"])
        for one, two in zip(turns[::2], turns[1::2], strict=True)
    ]


def _json(results: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """As `_pairs`, of `decode` and `from_json`; empty if it was not measured."""
    return _pairs(results.get("decode", []))


def _at_goal(results: dict[str, Any]) -> float | None:
    """The ratio to the connector in the case that has a goal; None if it was not measured."""
    ratios = {
        (ours["topic"], ours["cores"]): ratio
        for ours, _, ratio in _pairs(results.get("source", []))
    }
    return ratios.get(("100-none", 1))


def text_of(results: dict[str, Any]) -> str:
    machine = results["machine"]
    sink, floor = _delta(results)
    spent_ms = floor["of_which_ms"]
    at_goal = _at_goal(results)
    return _TEXT.read_text().format(
        machine=f"PySpark {machine['pyspark']}, {machine['cores']} cores ({machine['processor']}), "
        f"{machine['system']}, Python {machine['python']}",
        date=results["date"],
        source=_source_table(results["source"]),
        source_goal="not measured" if at_goal is None else _verdict(goals.SPARK_SOURCE, at_goal),
        delta=_delta_table(sink, floor, _iceberg(results)),
        logs_ms=f"{spent_ms['walCommit'] + spent_ms['commitOffsets']:.0f}",
        planner_ms=f"{spent_ms['queryPlanning']:.0f}",
        batch_ms=f"{spent_ms['addBatch']:.0f}",
        outputs=_outputs_table(_outputs(results)),
        decode=_decode_table(_json(results)),
        table=_reader_table(results["table"]),
    )


def _verdict(goal: Goal, value: float) -> str:
    return f"{goal.wanted}: {'met' if goal.is_met(value) else 'missed'}"


def _pairs(figures: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """Ours, what stands beside it, and the ratio of their rows/s. They come in turns."""
    pairs = zip(figures[::2], figures[1::2], strict=True)
    return [(ours, theirs, ours["rows_per_s"] / theirs["rows_per_s"]) for ours, theirs in pairs]


class _Read(NamedTuple):
    """One of our ways to read a table, beside the Parquet source and the bound."""

    ours: dict[str, Any]
    parquet: dict[str, Any]
    ratio: float
    of_bound: float | None
    """None: older figures do not have it."""

    @property
    def is_met(self) -> bool:
        least = goals.SPARK_TABLE.or_of_bound
        assert least is not None
        return goals.SPARK_TABLE.is_met(self.ratio) or (self.of_bound or 0) >= least


def _readers(figures: list[dict[str, Any]]) -> list[_Read]:
    found = {(each["format"], each["columns"]): each for each in figures}
    reads = []
    for (source, columns), ours in found.items():
        if source in (_PARQUET, _BOUND):
            continue
        parquet, bound = found[_PARQUET, columns], found.get((_BOUND, columns))
        rate = ours["rows_per_s"]
        # The bound is of sources in Python, which `read_delta` is not.
        share = rate / bound["rows_per_s"] if bound and source == "suwi-delta" else None
        reads.append(_Read(ours, parquet, rate / parquet["rows_per_s"], share))
    return reads


def _fastest(figures: list[dict[str, Any]]) -> list[_Read]:
    """`read_delta`, for which the goal is; older figures do not have it."""
    found = _readers(figures)
    return [each for each in found if each.ours["format"] == "read_delta"] or found


def _table(header: str, rows: list[list[str]]) -> str:
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _source_table(figures: list[dict[str, Any]]) -> str:
    rows = []
    for ours, theirs, ratio in _pairs(figures):
        value_bytes, _, codec = ours["topic"].partition("-")
        cpu = theirs["cpu_us_per_row"] / ours["cpu_us_per_row"]
        rows.append(
            [
                f"{value_bytes} B",
                codec,
                str(ours["cores"]),
                f"{ours['rows_per_s']:,}",
                f"{theirs['rows_per_s']:,}",
                f"{ratio:.2f} ×",
                f"{cpu:.2f} ×",
                str(ours["worker_mb"]),
                f"{ours['first_read_s']:.1f}, {theirs['first_read_s']:.1f}",
            ]
        )
    return _table(
        "| values | codec | cores | ours, rows/s | connector, rows/s | ratio | CPU | worker MB "
        "| first read, s: ours, connector |",
        rows,
    )


def _delta_table(
    sink: dict[str, Any],
    floor: dict[str, Any],
    iceberg: list[tuple[dict[str, Any], dict[str, Any], float]],
) -> str:
    def warm_up(found: dict[str, Any]) -> str:
        warm = found["warm_up"]
        first, second = warm["first_batch_ms"] / 1000, warm["second_batch_ms"] / 1000
        return f"{warm['session_s']:.0f} s, {first:.0f} s, {second:.1f} s"

    def memory(found: dict[str, Any]) -> str:
        return (
            f"JVM {found['peak_mb']['jvm']} MB, each Python worker {found['peak_mb']['worker']} MB"
        )

    return _table(
        "| | | goal |",
        [
            [
                "rows/s, median of whole batches",
                f"{sink['rows_per_s']:,} (best {sink['rows_per_s_best']:,})",
                _verdict(goals.SPARK_SINK, sink["rows_per_s"]),
            ],
            [
                "micro-batch floor, median of 30",
                f"{floor['floor_ms']:.0f} ms (best {floor['floor_ms_best']:.0f})",
                _verdict(goals.SPARK_FLOOR, floor["floor_ms"]),
            ],
            [
                "warm-up: session, first batch, second batch",
                f"{warm_up(sink)} with large batches; {warm_up(floor)} with 100 rows",
                "",
            ],
            ["memory at most, throughput", memory(sink), ""],
            ["memory at most, small batches", memory(floor), ""],
            *(
                [
                    "the same into an Iceberg table (SQLite catalog): rows/s, floor",
                    f"{large['rows_per_s']:,} ({ratio:.2f} ×), {small['floor_ms']:.0f} ms",
                    _verdict(goals.SPARK_ICEBERG, ratio),
                ]
                for large, small, ratio in iceberg
            ),
        ],
    )


def _outputs_table(found: list[tuple[dict[str, Any], dict[str, Any], float]]) -> str:
    rows = [
        [
            one["rows"],
            f"{one['cpu_us_per_row']:.2f} µs",
            f"{two['cpu_us_per_row']:.2f} µs",
            f"{ratio:.2f} ×",
            _verdict(goals.SPARK_OUTPUTS, ratio) if one["rows"] == DECODED else "",
            f"{one['rows_per_s']:,} and {two['rows_per_s']:,}",
        ]
        for one, two, ratio in found
    ]
    header = (
        "| records | CPU for a row, one read | two pipelines | ratio | goal | rows/s of the topic |"
    )
    return _table(header, rows) if rows else "Not measured."


def _decode_table(found: list[tuple[dict[str, Any], dict[str, Any], float]]) -> str:
    rows = [
        [
            f"{ours['rows_per_s']:,}",
            f"{theirs['rows_per_s']:,}",
            f"{ratio:.2f} ×",
            _verdict(goals.SPARK_JSON, ratio),
            f"{ours['cpu_us_per_row']:.2f} and {theirs['cpu_us_per_row']:.2f} µs",
        ]
        for ours, theirs, ratio in found
    ]
    header = "| `decode`, rows/s | `from_json` | ratio | goal | CPU for a row, ours and its |"
    return _table(header, rows) if rows else "Not measured."


def _reader_table(figures: list[dict[str, Any]]) -> str:
    rows = [
        [
            "all five" if ours["columns"] == "*" else "one",
            f"`{ours['format']}`",
            f"{ours['rows_per_s']:,}",
            f"{theirs['rows_per_s']:,}",
            f"{ratio:.2f} ×",
            "" if share is None else f"{share:.0%}",
            f"{goals.SPARK_TABLE.wanted}: {'met' if read.is_met else 'missed'}",
            f"{ours['cpu_us_per_row']:.2f} and {theirs['cpu_us_per_row']:.2f} µs",
        ]
        for read in _readers(figures)
        for ours, theirs, ratio, share in [read]
    ]
    return _table(
        "| columns | ours | ours, rows/s | Parquet source, rows/s | ratio | of the bound | goal "
        "| CPU for a row, ours and its |",
        rows,
    )
