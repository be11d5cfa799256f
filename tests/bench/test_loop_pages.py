"""Rows meet their goals, or are marked as not counting."""

from pathlib import Path

import pytest

from bench import loop_pages as pages
from bench.jobs import fairness, request_stalls
from bench.measure import Figure
from bench.pages import Page
from bench.report import Results
from bench.servers import KAFKA, SUWI
from tests.bench.test_lines import MACHINE


def beside(longest_ms: list[float], p999_ms: float = 1.0, control_ms: float = 1.0) -> Figure:
    figure = Figure("flood", SUWI, notes=[f"callback {number}" for number in range(5)])
    for longest in longest_ms:
        figure.add(
            {
                "work_s": 1.0,
                "callbacks": 10_000,
                "callback_max_ms": longest,
                "callback_p999_ms": p999_ms,
                "callbacks_over": 0,
                "own_beat_max_ms": 1.0,
                "gc_max_ms": 0.0,
                "ping_p999_ms": 2.0,
                "ping_max_ms": 3.0,
                "control_p999_ms": control_ms,
            }
        )
    return figure


def test_one_long_callback_in_one_repetition_misses_the_goal() -> None:
    assert pages.loop_never_stalls(beside([5, 5, 19, 5, 5]))
    assert not pages.loop_never_stalls(beside([5, 5, 21, 5, 5]))
    assert not pages.loop_never_stalls(beside([5] * 5, p999_ms=11))


def test_a_single_request_is_judged_by_its_longest_callback_in_a_table_of_its_own() -> None:
    figure = beside([19], p999_ms=19)
    figure.job = request_stalls.JOB + "Metadata: all topics"
    assert pages.loop_never_stalls(figure)
    lines = list(pages._stall_tables([figure]))
    (row,) = (line for line in lines if "all topics" in line)
    assert row.startswith("| Metadata: all topics | 19.0 | 0.0 |")
    assert lines.index(row) > lines.index("## Inside: single requests")


def test_the_longest_callback_of_all_repetitions_is_named() -> None:
    assert pages.worst_callback(beside([5, 5, 21, 5, 5])) == "callback 2"


def test_what_a_client_saw_counts_only_on_a_quiet_machine_and_often_enough() -> None:
    assert pages.counts(beside([5] * 5))
    assert not pages.counts(beside([5] * 5, control_ms=6))
    assert not pages.counts(beside([5] * 4))


def test_a_kind_of_work_that_failed_is_missed_and_shown(tmp_path: Path) -> None:
    failed = Figure("flood", KAFKA, notes=["TimeoutError()"])
    results = Results("full", MACHINE, [failed])
    (row,) = pages.STALLS.write(tmp_path, results)
    assert row.met is False
    assert "| flood |  |  |  |  |  | failed |" in (tmp_path / "stalls.md").read_text()


def small_producer(system: str, alone_ms: float, greedy_ms: float) -> list[Figure]:
    figures = []
    for who in (fairness.ALONE, *fairness.GREEDY):
        took_ms = alone_ms if who == fairness.ALONE else greedy_ms
        figure = Figure(fairness.job(who), system)
        figure.add({f"ping_{name}_ms": took_ms for name in ("p50", "p99", "p999", "max")})
        figures.append(figure)
    return figures


@pytest.mark.parametrize(
    ("suwi_ms", "kafka_ms", "met"), [(1.9, 1.0, True), (5.0, 6.0, True), (5.0, 4.0, False)]
)
def test_fair_is_twice_of_alone_or_what_kafka_does(
    suwi_ms: float, kafka_ms: float, met: bool
) -> None:
    figures = small_producer(SUWI, 1.0, suwi_ms) + small_producer(KAFKA, 1.0, kafka_ms)
    assert {row.met for row in pages.FAIRNESS_PAGE.rows(figures)} == {met}


@pytest.mark.parametrize("page", [pages.STALLS, pages.FAIRNESS_PAGE], ids=lambda page: page.name)
def test_a_page_is_json_and_tables(page: Page, tmp_path: Path) -> None:
    figures = [beside([5] * 5), *small_producer(SUWI, 1.0, 2.0)]
    mine = figures[:1] if page is pages.STALLS else figures[1:]
    assert page.write(tmp_path, Results("full", MACHINE, mine))
    for suffix in ("json", "md"):
        assert (tmp_path / f"{page.name}.{suffix}").stat().st_size > 0
