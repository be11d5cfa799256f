"""Parts with their own page, `stalls` and `fairness`: each as JSON, tables and a chart."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import chart
from bench.jobs import fairness, request_stalls
from bench.measure import Figure
from bench.panels import Panel, Row
from bench.report import Results, setting, times, write_json
from bench.servers import KAFKA, SUWI
from bench.watch.callbacks import OVER_S

_TEXTS = Path(__file__).parent
CALLBACK_MS_MAX = OVER_S * 1000
CALLBACK_P999_MS_MAX = 10.0
CONTROL_P999_MS_MAX = 5.0
RUNS_MIN = 5
TIMES_ALONE_MAX = 2.0


@dataclass(frozen=True)
class Finding:
    """Whether one row of a page meets its goal; None: without a goal."""

    text: str
    met: bool | None

    def __str__(self) -> str:
        return {True: "met   ", False: "MISSED", None: "      "}[self.met] + f" {self.text}"


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    tables: Callable[[list[Figure]], Iterable[str]]
    findings: Callable[[list[Figure]], list[Finding]]
    panels: Callable[[list[Figure]], list[Panel]]

    def write(self, directory: Path, results: Results) -> list[Finding]:
        findings = self.findings(results.figures)
        write_json(directory / f"{self.name}.json", results, [vars(each) for each in findings])
        how_to_read = (_TEXTS / f"how_to_read_{self.name}.md").read_text()
        lines = [f"# {self.title}", "", setting(results), "", how_to_read]
        lines += [f"![{self.title}]({self.name}.svg)", "", *self.tables(results.figures)]
        (directory / f"{self.name}.md").write_text("\n".join(lines) + "\n")
        panels = self.panels(results.figures)
        chart.draw(directory / f"{self.name}.svg", results.figures, panels=panels)
        return findings


def _of(figures: Iterable[Figure], system: str) -> dict[str, Figure]:
    return {figure.job: figure for figure in figures if figure.system == system}


def _ms(figure: Figure | None, metric: str, which: Callable[[list[float]], float]) -> str:
    if figure is None or metric not in figure.values:
        return ""
    value = which(figure.values[metric])
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _header(*cells: str) -> list[str]:
    return [_row(*cells), "|---" * len(cells) + "|"]


def _mark(met: bool | None) -> str:
    return {True: "✓", False: "✗", None: ""}[met]


# -- stalls ------------------------------------------------------------------------------------


def loop_never_stalls(figure: Figure) -> bool:
    """No callback too long in any repetition; few nearly too long in the median one."""
    longest_ms = max(figure.values["callback_max_ms"])
    if is_request(figure.job):
        return longest_ms <= CALLBACK_MS_MAX
    return longest_ms <= CALLBACK_MS_MAX and (
        figure.median("callback_p999_ms") <= CALLBACK_P999_MS_MAX
    )


def is_request(job: str) -> bool:
    """Whether the job is a single request, with too few callbacks for a percentile."""
    return job.startswith(request_stalls.JOB)


def counts(figure: Figure) -> bool:
    """Whether the machine was quiet enough, often enough, for the client's figures."""
    if "control_p999_ms" not in figure.values:
        return False
    control_ms = figure.values["control_p999_ms"]
    return len(control_ms) >= RUNS_MIN and statistics.median(control_ms) <= CONTROL_P999_MS_MAX


def worst_callback(figure: Figure) -> str:
    """The name of the longest of all repetitions."""
    longest = figure.values["callback_max_ms"]
    named = dict(zip(longest, figure.notes, strict=False))
    return named.get(max(longest), "")


def _stall_tables(figures: list[Figure]) -> Iterable[str]:
    suwi, kafka = _of(figures, SUWI), _of(figures, KAFKA)
    watched = {job: f for job, f in suwi.items() if "callback_max_ms" in f.values}
    yield "## Inside: callbacks of Suwi's event loop, CPU"
    yield ""
    yield from _header(
        "beside", "longest ms", "p99.9 ms", "over 20 ms", "heartbeat late, own share, ms",
        "garbage collection ms", "runs", "", "the longest",
    )  # fmt: skip
    for job, figure in watched.items():
        if is_request(job):
            continue
        name = worst_callback(figure)
        yield _row(
            job,
            _ms(figure, "callback_max_ms", max),
            _ms(figure, "callback_p999_ms", statistics.median),
            f"{max(figure.values['callbacks_over']):.0f}",
            _ms(figure, "own_beat_max_ms", statistics.median),
            _ms(figure, "gc_max_ms", max),
            str(len(figure.values["callbacks"])),
            _mark(loop_never_stalls(figure)),
            f"`{name}`" if name else "",
        )
    yield ""
    yield from _request_table({job: f for job, f in watched.items() if is_request(job)})
    yield "## Outside: a small producer beside the same work"
    yield ""
    columns = ("work s", "p99.9 ms", "max ms", "control p99.9 ms", "counts")
    yield from _header("beside", *(f"{s}: {c}" for s in ("Suwi", "Kafka") for c in columns))
    for job in dict.fromkeys([*suwi, *kafka]):
        if not is_request(job):
            yield _row(job, *_seen(suwi.get(job)), *_seen(kafka.get(job)))


def _request_table(figures: dict[str, Figure]) -> Iterable[str]:
    yield "## Inside: single requests"
    yield ""
    yield from _header(
        "request", "longest ms", "garbage collection ms", "CPU s", "until the reply s", "",
        "the longest",
    )  # fmt: skip
    for job, figure in figures.items():
        yield _row(
            job.removeprefix(request_stalls.JOB),
            _ms(figure, "callback_max_ms", max),
            _ms(figure, "gc_max_ms", max),
            _ms(figure, "loop_cpu_s", max),
            _ms(figure, "work_s", max),
            _mark(loop_never_stalls(figure)),
            f"`{worst_callback(figure)}`" if not loop_never_stalls(figure) else "",
        )
    yield ""


def _seen(figure: Figure | None) -> list[str]:
    middle = statistics.median
    return [
        "" if figure is None else _ms(figure, "work_s", middle) or "failed",
        _ms(figure, "ping_p999_ms", middle),
        _ms(figure, "ping_max_ms", middle),
        _ms(figure, "control_p999_ms", middle),
        ("yes" if counts(figure) else "no")
        if figure is not None and "ping_p999_ms" in figure.values
        else "",
    ]


def _stall_findings(figures: list[Figure]) -> list[Finding]:
    failed = [
        Finding(f"{figure.job}, {figure.system}: failed, {' '.join(figure.notes)}", False)
        for figure in figures
        if not figure.values
    ]
    return failed + [
        Finding(
            f"{job}: longest callback {max(figure.values['callback_max_ms']):.1f} ms CPU, "
            f"p99.9 {figure.median('callback_p999_ms'):.1f} ms, "
            f"{max(figure.values['callbacks_over']):.0f} over 20 ms; {worst_callback(figure)}",
            loop_never_stalls(figure),
        )
        for job, figure in _of(figures, SUWI).items()
        if "callback_max_ms" in figure.values
    ]


def _stall_panels(figures: list[Figure]) -> list[Panel]:
    jobs = list(dict.fromkeys(figure.job for figure in figures if not is_request(figure.job)))
    return [
        Panel(
            "Longest callback of the event loop, CPU (less is better, logarithmic)",
            "ms",
            [Row(_short(job), job, "callback_max_ms", goal=CALLBACK_MS_MAX) for job in jobs],
            logarithmic_from=0.1,
        ),
        Panel(
            "A small producer beside it, p99.9 (less is better, logarithmic)",
            "ms",
            [Row(_short(job), job, "ping_p999_ms") for job in jobs],
            logarithmic_from=0.1,
        ),
    ]


def _short(job: str) -> str:
    return job if len(job) <= 44 else job[:42] + " …"


# -- fairness ----------------------------------------------------------------------------------


def times_alone(figures: list[Figure], system: str, who: str) -> list[float]:
    """In each repetition: p99 beside a greedy client, divided by p99 alone."""
    found = _of(figures, system)
    alone, beside = found.get(fairness.job(fairness.ALONE)), found.get(fairness.job(who))
    if alone is None or beside is None:
        return []
    pairs = zip(beside.values["ping_p99_ms"], alone.values["ping_p99_ms"], strict=True)
    return [with_ms / without_ms for with_ms, without_ms in pairs]


def _is_fair(figures: list[Figure], who: str) -> bool | None:
    ratios = times_alone(figures, SUWI, who)
    if not ratios:
        return None
    if statistics.median(ratios) <= TIMES_ALONE_MAX:
        return True
    job = fairness.job(who)
    suwi, kafka = _of(figures, SUWI)[job], _of(figures, KAFKA).get(job)
    return kafka is not None and suwi.median("ping_p99_ms") <= kafka.median("ping_p99_ms")


def _fairness_tables(figures: list[Figure]) -> Iterable[str]:
    suwi, kafka = _of(figures, SUWI), _of(figures, KAFKA)
    columns = ("p50 ms", "p99 ms", "p99, × alone", "p99.9 ms", "greedy, replies/s")
    yield from _header("", *(f"{s}: {c}" for s in ("Suwi", "Kafka") for c in columns), "runs", "")
    for who in (fairness.ALONE, *fairness.GREEDY):
        job = fairness.job(who)
        if job not in suwi:
            continue
        cells = []
        for system, found in ((SUWI, suwi), (KAFKA, kafka)):
            ratios = times_alone(figures, system, who) if who != fairness.ALONE else []
            cells += [
                _ms(found.get(job), "ping_p50_ms", statistics.median),
                _ms(found.get(job), "ping_p99_ms", statistics.median),
                times(statistics.median(ratios)) if ratios else "",
                _ms(found.get(job), "ping_p999_ms", statistics.median),
                _ms(found.get(job), "greedy_replies_per_s", statistics.median),
            ]
        is_fair = _is_fair(figures, who) if who != fairness.ALONE else None
        runs = str(len(suwi[job].values["ping_p99_ms"]))
        yield _row(job, *cells, runs, _mark(is_fair))


def _fairness_findings(figures: list[Figure]) -> list[Finding]:
    findings = []
    for who in fairness.GREEDY:
        ratios = times_alone(figures, SUWI, who)
        if not ratios:
            continue
        text = f"{fairness.job(who)}: p99 {statistics.median(ratios):.2f} × of alone"
        of_kafka = times_alone(figures, KAFKA, who)
        if of_kafka:
            suwi, kafka = (_of(figures, s)[fairness.job(who)] for s in (SUWI, KAFKA))
            text += (
                f" ({suwi.median('ping_p99_ms'):.1f} ms); Kafka {statistics.median(of_kafka):.2f} ×"
                f" ({kafka.median('ping_p99_ms'):.1f} ms)"
            )
        findings.append(Finding(text, _is_fair(figures, who)))
    return findings


def _fairness_panels(_figures: list[Figure]) -> list[Panel]:
    jobs = [fairness.job(who) for who in (fairness.ALONE, *fairness.GREEDY)]
    return [
        Panel(
            f"Small producer, {name} (less is better, logarithmic)",
            "ms",
            [Row(job, job, metric) for job in jobs],
            logarithmic_from=0.1,
        )
        for name, metric in (("p50", "ping_p50_ms"), ("p99", "ping_p99_ms"))
    ]


STALLS = Page("stalls", "Stalls of the event loop", _stall_tables, _stall_findings, _stall_panels)
FAIRNESS = Page(
    "fairness", "Fairness to a small producer", _fairness_tables, _fairness_findings,
    _fairness_panels,
)  # fmt: skip
