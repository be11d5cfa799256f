"""The list of what is wrong with a broker: each problem once, from its beginning to its end."""

import logging

import pytest

from suwi.env.problems import ProblemKind, Problems
from suwi.sim import ManualClock


def test_a_problem_is_listed_and_logged_once_until_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    problems = Problems(clock)
    with caplog.at_level(logging.INFO):
        problems.report(ProblemKind.DISK_FULL, "/data", "no space left on the device")
        began_ms = clock.now_ms()
        clock.advance(1000)
        problems.report(ProblemKind.DISK_FULL, "/data", "no space left on the device")
        assert [(p.place, p.since_ms) for p in problems] == [("/data", began_ms)]
        problems.resolve(ProblemKind.DISK_FULL, "/data")
        problems.resolve(ProblemKind.DISK_FULL, "/data")
    assert list(problems) == []
    assert [record.message for record in caplog.records] == ["problem", "problem is over"]


def test_problems_of_two_places_are_two() -> None:
    problems = Problems(ManualClock())
    problems.report(ProblemKind.DISK_FULL, "/a", "no space left on the device")
    problems.report(ProblemKind.DISK_FULL, "/b", "no space left on the device")
    problems.resolve(ProblemKind.DISK_FULL, "/a")
    assert [problem.place for problem in problems] == ["/b"]
    assert problems.counts()["disk-full"] == 1
    assert problems.counts().total() == 1
