"""Work of a consumer group that takes long: assignments and regular expressions, side by side."""

import pytest

from suwi.group import assignors, regular_expressions
from suwi.group.consumer_group import GroupState, assignment_timer, regex_timer
from tests.group.consumer_driver import TOPICS, ConsumerDriver
from tests.group.driver import GROUP


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ConsumerDriver:
    """Every job needs more than one event."""
    monkeypatch.setattr(regular_expressions, "COST_PER_SLICE", 1)
    monkeypatch.setattr(assignors.Pace, "is_over", lambda *_: True)
    return ConsumerDriver()


@pytest.mark.parametrize("first", [assignment_timer, regex_timer])
def test_an_assignment_and_expressions_that_both_take_long_are_both_done(
    jobs: ConsumerDriver, first: object
) -> None:
    jobs.beat("m1", *TOPICS)
    jobs.beat("m2", regex="a.*")
    timers = [assignment_timer(GROUP), regex_timer(GROUP)]
    for key in sorted(timers, key=lambda key: key != first(GROUP)):  # type: ignore[operator]
        jobs.fire(key)
    jobs.sleep(5_000)
    assert jobs.consumer.regexes["a.*"].topics == TOPICS
    assert jobs.consumer.state is not GroupState.ASSIGNING
    assert sum(jobs.targets().values()) == len(TOPICS)
    assert len(jobs.targets()) == 2


def test_an_expression_that_comes_while_others_are_resolved_does_not_wait_for_the_refresh(
    jobs: ConsumerDriver,
) -> None:
    jobs.beat("m1", regex="a.*")
    jobs.fire(regex_timer(GROUP))
    jobs.beat("m2", regex="a[0-9]")
    jobs.sleep(5_000)
    assert set(jobs.consumer.regexes) == {"a.*", "a[0-9]"}
    assert jobs.consumer.state is not GroupState.ASSIGNING
    assert len(jobs.targets()) == 2


def test_one_slice_of_expressions_is_resolved_per_event(
    jobs: ConsumerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched = []
    matches = regular_expressions.Regex.matches

    def counted(regex: regular_expressions.Regex, name: str) -> bool:
        matched.append((jobs.event, name))
        return matches(regex, name)

    monkeypatch.setattr(regular_expressions.Regex, "matches", counted)
    jobs.beat("m1", regex="a.*")
    jobs.sleep(5_000)
    assert {name for _, name in matched} == set(TOPICS)
    assert len({id(event) for event, _ in matched}) == len(matched)
