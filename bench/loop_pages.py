"""The pages on one event loop for all clients: stalls of it, and fairness to a small producer."""

import statistics
from collections.abc import Callable, Iterable

from bench import goals
from bench.goals import number
from bench.jobs import fairness, request_stalls
from bench.lines import Row, cells, header, mark
from bench.measure import Figure
from bench.pages import Page
from bench.servers import KAFKA, SUWI

CONTROL_P999_MS_MAX = 5.0
RUNS_MIN = 5


def _of(figures: Iterable[Figure], system: str) -> dict[str, Figure]:
    return {figure.job: figure for figure in figures if figure.system == system}


def _ms(figure: Figure | None, metric: str, which: Callable[[list[float]], float]) -> str:
    if figure is None or metric not in figure.values:
        return ""
    value = which(figure.values[metric])
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


# -- stalls ------------------------------------------------------------------------------------


def loop_never_stalls(figure: Figure) -> bool:
    """No callback too long in any repetition; few nearly too long in the median one."""
    is_short = goals.CALLBACK_MAX.is_met(max(figure.values["callback_max_ms"]))
    if is_request(figure.job):
        return is_short
    return is_short and goals.CALLBACK_P999.is_met(figure.median("callback_p999_ms"))


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
    yield from header(
        "beside", "longest ms", "p99.9 ms", f"over {goals.CALLBACK_MAX.limit:g} ms",
        "heartbeat late, own share, ms", "garbage collection ms", "runs", "", "the longest",
    )  # fmt: skip
    for job, figure in watched.items():
        if is_request(job):
            continue
        name = worst_callback(figure)
        yield cells(
            job,
            _ms(figure, "callback_max_ms", max),
            _ms(figure, "callback_p999_ms", statistics.median),
            f"{max(figure.values['callbacks_over']):.0f}",
            _ms(figure, "own_beat_max_ms", statistics.median),
            _ms(figure, "gc_max_ms", max),
            str(len(figure.values["callbacks"])),
            mark(loop_never_stalls(figure)),
            f"`{name}`" if name else "",
        )
    yield ""
    if requests := {job: figure for job, figure in watched.items() if is_request(job)}:
        yield from _request_table(requests)
    yield "## Outside: a small producer beside the same work"
    yield ""
    columns = ("work s", "p99.9 ms", "max ms", "control p99.9 ms", "counts")
    yield from header("beside", *(f"{s}: {c}" for s in ("Suwi", "Kafka") for c in columns))
    for job in dict.fromkeys([*suwi, *kafka]):
        if not is_request(job):
            yield cells(job, *_seen(suwi.get(job)), *_seen(kafka.get(job)))


def _request_table(figures: dict[str, Figure]) -> Iterable[str]:
    yield "## Inside: single requests"
    yield ""
    yield from header(
        "request", "longest ms", "garbage collection ms", "CPU s", "until the reply s", "",
        "the longest",
    )  # fmt: skip
    for job, figure in figures.items():
        yield cells(
            job.removeprefix(request_stalls.JOB),
            _ms(figure, "callback_max_ms", max),
            _ms(figure, "gc_max_ms", max),
            _ms(figure, "loop_cpu_s", max),
            _ms(figure, "work_s", max),
            mark(loop_never_stalls(figure)),
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


def _stall_rows(figures: list[Figure]) -> list[Row]:
    """For each kind of work its longest callback and its percentile, and what failed."""
    rows = []
    for figure in figures:
        if not figure.values:
            why = f"failed, {' '.join(figure.notes)}"
            rows.append(Row(f"{figure.job}, {figure.system}", why, "", met=False))
        elif figure.system == SUWI and "callback_max_ms" in figure.values:
            longest = max(figure.values["callback_max_ms"])
            shown = f"{number(longest)} ms; {worst_callback(figure)}"
            rows.append(_stall_row(figure.job, longest, shown, goals.CALLBACK_MAX))
            if not is_request(figure.job):
                p999 = figure.median("callback_p999_ms")
                rows.append(_stall_row(figure.job, p999, f"{number(p999)} ms", goals.CALLBACK_P999))
    return rows


def _stall_row(job: str, value: float, shown: str, goal: goals.Goal) -> Row:
    return Row(job, shown, "", goal=goal, met=goal.is_met(value), value=value, unit="ms")


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
    if goals.FAIRNESS.is_met(statistics.median(ratios)):
        return True
    job = fairness.job(who)
    suwi, kafka = _of(figures, SUWI)[job], _of(figures, KAFKA).get(job)
    return kafka is not None and suwi.median("ping_p99_ms") <= kafka.median("ping_p99_ms")


def _fairness_tables(figures: list[Figure]) -> Iterable[str]:
    suwi, kafka = _of(figures, SUWI), _of(figures, KAFKA)
    columns = ("p50 ms", "p99 ms", "p99, × alone", "p99.9 ms", "greedy, replies/s")
    yield from header("", *(f"{s}: {c}" for s in ("Suwi", "Kafka") for c in columns), "runs", "")
    for who in (fairness.ALONE, *fairness.GREEDY):
        job = fairness.job(who)
        if job not in suwi:
            continue
        shown = []
        for system, found in ((SUWI, suwi), (KAFKA, kafka)):
            ratios = times_alone(figures, system, who) if who != fairness.ALONE else []
            shown += [
                _ms(found.get(job), "ping_p50_ms", statistics.median),
                _ms(found.get(job), "ping_p99_ms", statistics.median),
                f"{statistics.median(ratios):.3g} ×" if ratios else "",
                _ms(found.get(job), "ping_p999_ms", statistics.median),
                _ms(found.get(job), "greedy_replies_per_s", statistics.median),
            ]
        is_fair = _is_fair(figures, who) if who != fairness.ALONE else None
        runs = str(len(suwi[job].values["ping_p99_ms"]))
        yield cells(job, *shown, runs, mark(is_fair))


def _fairness_rows(figures: list[Figure]) -> list[Row]:
    rows = []
    for who in fairness.GREEDY:
        if not (ratios := times_alone(figures, SUWI, who)):
            continue
        job, value = fairness.job(who), statistics.median(ratios)
        suwi, kafka = (_of(figures, system).get(job) for system in (SUWI, KAFKA))
        ratio = None
        if suwi is not None and kafka is not None:
            ratio = suwi.median("ping_p99_ms") / kafka.median("ping_p99_ms")
        shown = [_ms(figure, "ping_p99_ms", statistics.median) for figure in (suwi, kafka)]
        rows.append(
            Row(
                job,
                f"{shown[0]} ms",
                f"{shown[1]} ms" if kafka is not None else "",
                ratio,
                goals.FAIRNESS,
                _is_fair(figures, who),
                value=value,
                unit="× alone",
            )
        )
    return rows


STALLS = Page("stalls", "Stalls of the event loop", _stall_rows, _stall_tables)
FAIRNESS_PAGE = Page("fairness", "Fairness to a small producer", _fairness_rows, _fairness_tables)
