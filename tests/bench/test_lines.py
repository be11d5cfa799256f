"""Pages with a line for each value: the cluster and transactions, their goals, what is written."""

from pathlib import Path

import pytest

from bench.cluster_page import CLUSTER_PAGE
from bench.jobs import cluster_failover, cluster_load, transactions
from bench.lines import Line
from bench.measure import Figure
from bench.pages import Page
from bench.report import Results
from bench.servers import KAFKA, SUWI
from bench.transactions_page import TRANSACTIONS_PAGE
from tests.bench.test_pages import MACHINE

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


def missed(page: Page, figures: list[Figure]) -> list[str]:
    return [finding.text for finding in page.findings(figures) if finding.met is False]


def test_transactions_keep_at_least_the_share_of_kafka() -> None:
    assert missed(TRANSACTIONS_PAGE, shares(suwi=60, kafka=55)) == []
    (less,) = missed(TRANSACTIONS_PAGE, shares(suwi=50, kafka=55))
    assert less.startswith("Java, TV2: 100 records each, kept: 50 %")


def test_the_goal_of_kills_is_one_of_the_median_and_the_maximum_is_stated() -> None:
    found = kills(300, 400, 2_000)
    assert missed(CLUSTER_PAGE, found) == []
    assert any("maximum: 2,000 ms" in each.text for each in CLUSTER_PAGE.findings(found))
    assert len(missed(CLUSTER_PAGE, kills(300, 600, 700))) == 1


def test_kills_that_there_was_no_time_for_are_told_and_missed() -> None:
    found = kills(300, 400)
    found[0].add({cluster_failover.LEFT_OUT: 0})
    assert missed(CLUSTER_PAGE, found) == []
    found[0].add({cluster_failover.LEFT_OUT: 48})
    (told,) = missed(CLUSTER_PAGE, found)
    assert told.startswith("kills that there was no time for: 48 kills")


def test_a_ratio_to_kafka_may_be_one_where_less_is_better() -> None:
    line = Line("silence", "roll", "silence_ms", "ms", 1.0, of_kafka=True)
    suwi, kafka = (
        Figure("roll", name, {"silence_ms": [ms]}) for name, ms in ((SUWI, 200), (KAFKA, 300))
    )
    assert line.met(suwi, kafka)
    assert not line.met(kafka, suwi)
    assert line.met(suwi, None) is None


@pytest.mark.parametrize("ending", ["json", "md", "svg"])
def test_pages_are_json_a_table_and_a_picture(tmp_path: Path, ending: str) -> None:
    produced = {"records_per_s": [5.0]}
    figures = [*kills(300), Figure(cluster_load.processes_job(2), SUWI, produced)]
    CLUSTER_PAGE.write(tmp_path, Results("quick", MACHINE, figures))
    TRANSACTIONS_PAGE.write(tmp_path, Results("quick", MACHINE, shares(60, 50)))
    assert "2 broker processes" in (tmp_path / f"cluster.{ending}").read_text()
    assert "Java, TV2" in (tmp_path / f"transactions.{ending}").read_text()
