"""Pages with a row for each value: their goals, and what is written."""

from pathlib import Path

import pytest

from bench import goals
from bench.goals import TIMES_KAFKA, Goal
from bench.jobs import access, cluster_failover, cluster_load, groups, java, transactions
from bench.lines import Line, Row, rows_of
from bench.measure import Figure
from bench.pages import ACCESS_PAGE, BROKER, CLUSTER_PAGE, GROUPS_PAGE, TRANSACTIONS_PAGE, Page
from bench.report import Results
from bench.servers import BOUND, KAFKA, SUWI

MACHINE = {
    "apache_kafka": "4",
    "java": None,
    "cores": 2,
    "processor": "x",
    "memory_gb": 8,
    "system": "Linux",
    "python": "3",
    "librdkafka": "2",
    "load_at_start": 0.0,
}
TV2 = transactions.DRIVERS[0]


def shares(suwi: float, kafka: float) -> list[Figure]:
    job = transactions.share_job(TV2)
    return [
        Figure(job, system, {"idempotent_per_s": [100_000.0], "kept_percent_100": [kept]})
        for system, kept in ((SUWI, suwi), (KAFKA, kafka))
    ]


def kills(*took_ms: float) -> list[Figure]:
    return [
        Figure(cluster_failover.KILL_JOB, SUWI, {"all_acks_ms": list(took_ms)}),
        Figure(cluster_failover.KILL_JOB, KAFKA, {"all_acks_ms": [9_500.0]}),
    ]


def large_group(
    *, form_s: float = 1.5, commits: float = 900, kafka_commits: float = 800
) -> list[Figure]:
    rebalance, commit = groups.rebalance_job(500), groups.commits_job(50, 1)
    members = {"form_s": [form_s], "rebalance_s": [0.5], "commit_p99_ms": [30.0]}
    return [
        Figure(rebalance, SUWI, members),
        Figure(rebalance, KAFKA, {**members, "form_s": [9.0]}),
        Figure(commit, SUWI, {"commits_per_s": [commits]}),
        Figure(commit, KAFKA, {"commits_per_s": [kafka_commits]}),
    ]


def missed(page: Page, figures: list[Figure]) -> list[str]:
    return [str(row) for row in page.rows(figures) if row.met is False]


def test_goals_are_for_suwi_alone_or_against_kafka() -> None:
    assert missed(GROUPS_PAGE, large_group()) == []
    (late,) = missed(GROUPS_PAGE, large_group(form_s=2.1))
    assert late.startswith("MISSED first generation of 500 members: 2.1 s")
    (slow,) = missed(GROUPS_PAGE, large_group(commits=300))
    assert slow.startswith("MISSED commits of 50 committers of one group: 300 /s")


def test_without_kafka_there_is_no_goal_against_it() -> None:
    alone = [figure for figure in large_group(commits=1) if figure.system == SUWI]
    assert missed(GROUPS_PAGE, alone) == []


def test_transactions_keep_at_least_the_share_of_kafka() -> None:
    assert missed(TRANSACTIONS_PAGE, shares(suwi=60, kafka=55)) == []
    (less,) = missed(TRANSACTIONS_PAGE, shares(suwi=50, kafka=55))
    assert less.startswith("MISSED Java, TV2: 100 records each, kept: 50 %")


def test_kills_have_a_goal_for_the_median_and_one_for_the_maximum() -> None:
    assert missed(CLUSTER_PAGE, kills(300, 400, 900)) == []
    (longest,) = missed(CLUSTER_PAGE, kills(300, 400, 2_000))
    assert "maximum: 2,000 ms" in longest
    (median,) = missed(CLUSTER_PAGE, kills(300, 600, 700))
    assert "takes writes: 600 ms" in median


def test_kills_that_there_was_no_time_for_are_told_and_missed() -> None:
    found = kills(300, 400)
    found[0].add({cluster_failover.LEFT_OUT: 0})
    assert missed(CLUSTER_PAGE, found) == []
    found[0].add({cluster_failover.LEFT_OUT: 48})
    (told,) = missed(CLUSTER_PAGE, found)
    assert told.startswith("MISSED kills that there was no time for: 48 kills")


def judged(goal: Goal, suwi: float, kafka: float | None, bound: float | None = None) -> Row:
    values = {SUWI: suwi, KAFKA: kafka, BOUND: bound}
    figures = [Figure("job", name, {"x": [v]}) for name, v in values.items() if v is not None]
    (row,) = rows_of([Line("x", "job", "x", "ms", goal)], figures)
    return row


def test_a_ratio_to_kafka_may_be_one_where_less_is_better() -> None:
    goal = Goal("silence", 1.0, TIMES_KAFKA, more=False)
    assert judged(goal, 200, 300).met
    assert not judged(goal, 300, 200).met
    assert judged(goal, 200, None).met is None


@pytest.mark.parametrize(
    ("suwi", "kafka", "bound", "met"), [(9, 8, 20, True), (9, 10, 9.4, True), (9, 10, 9.6, False)]
)
def test_a_share_of_the_bound_counts_where_kafka_is_faster(
    suwi: float, kafka: float, bound: float, met: bool
) -> None:
    assert judged(goals.CONSUME, suwi, kafka, bound).met is met


@pytest.mark.parametrize("ending", ["json", "md"])
def test_pages_are_json_and_tables(tmp_path: Path, ending: str) -> None:
    replicated = {"records_per_s": [5.0]}
    figures = [*kills(300), Figure(cluster_load.JAVA_JOB, SUWI, replicated)]
    produced = Figure(java.produce_job(1_000), SUWI, {"records_per_s": [5.0], "wall_s": [2.0]})
    for page, found, word in (
        (CLUSTER_PAGE, figures, "Java"),
        (TRANSACTIONS_PAGE, shares(60, 50), "Java, TV2"),
        (GROUPS_PAGE, large_group(), "500 members"),
        (BROKER, [produced], "Java produce, 1000 B"),
        (ACCESS_PAGE, [Figure(access.JOB, SUWI, {"fetch_more_percent": [2.0]})], "fetch"),
    ):
        page.write(tmp_path, Results("quick", MACHINE, found))
        assert word in (tmp_path / f"{page.name}.{ending}").read_text()


def test_a_page_is_rendered_from_its_json_without_a_run(tmp_path: Path) -> None:
    results = Results("quick", MACHINE, kills(300))
    CLUSTER_PAGE.write(tmp_path, results)
    written = (tmp_path / "cluster.md").read_text()
    (tmp_path / "cluster.md").unlink()
    again = CLUSTER_PAGE.read(tmp_path)
    assert again is not None
    CLUSTER_PAGE.render(tmp_path, again)
    assert (tmp_path / "cluster.md").read_text() == written
