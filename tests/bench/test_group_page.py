"""The page on consumer groups: its goals, and what it is written to."""

from pathlib import Path

import pytest

from bench.group_page import GROUPS_PAGE
from bench.jobs import groups
from bench.measure import Figure
from bench.report import Results
from bench.servers import KAFKA, SUWI
from tests.bench.test_pages import MACHINE


def figures(
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


def missed(found: list[Figure]) -> list[str]:
    return [each.text for each in GROUPS_PAGE.findings(found) if each.met is False]


def test_goals_are_for_suwi_alone_or_against_kafka() -> None:
    assert missed(figures()) == []
    (late,) = missed(figures(form_s=2.1))
    assert late.startswith("first generation of 500 members: 2.1 s")
    (slow,) = missed(figures(commits=700))
    assert slow.startswith("commits of 50 committers of one group: 700 /s")


def test_without_kafka_there_is_no_goal_against_it() -> None:
    assert missed([figure for figure in figures(commits=1) if figure.system == SUWI]) == []


@pytest.mark.parametrize("ending", ["json", "md", "svg"])
def test_the_page_is_json_a_table_and_a_picture(tmp_path: Path, ending: str) -> None:
    GROUPS_PAGE.write(tmp_path, Results("quick", MACHINE, figures()))
    assert "500 members" in (tmp_path / f"groups.{ending}").read_text()
