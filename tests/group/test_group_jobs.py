"""Work of a consumer group that takes long: assignments and regular expressions, side by side."""

from itertools import count

import pytest

from suwi.coordinator.decision import Token
from suwi.group import assignors, regular_expressions
from suwi.group.consumer_config import assignment_timer, regex_timer
from suwi.group.consumer_group import ConsumerGroup, GroupState
from suwi.group.consumer_messages import HeartbeatRequest, HeartbeatResponse
from suwi.group.coordinator_shard import GroupCoordinatorShard
from tests.group.consumer_world import Image
from tests.group.driver import GROUP, Driver

TOPICS = 5


class Jobs(Driver):
    """Every job needs more than one event."""

    def __init__(self) -> None:
        self.image = Image()
        for number in range(TOPICS):
            self.image = self.image.with_topic(f"a{number}", 1)
        super().__init__()

    def _new_machine(self) -> GroupCoordinatorShard:
        ids = count(1)
        return GroupCoordinatorShard(self._config, lambda: f"made-{next(ids)}", lambda: self.image)

    @property
    def consumer(self) -> ConsumerGroup:
        group = self.machine.groups.consumer.get(GROUP)
        assert group is not None
        return group

    def beat(self, member_id: str, *names: str, regex: str | None = None) -> HeartbeatResponse:
        """A member joins."""
        request = HeartbeatRequest(
            GROUP,
            member_id,
            0,
            rebalance_timeout_ms=30_000,
            topic_names=names,
            topic_regex=regex,
            owned={},
            client_id="c",
            client_host="/h",
        )
        token = Token()
        response: HeartbeatResponse = self.do(
            lambda m, now_ms, decision: m.consumer_heartbeat(request, token, now_ms, decision),
            token,
        )
        return response

    def fire(self, key: object) -> None:
        """That timer is the next one to expire."""
        self.now_ms = max(self.now_ms, self.timers.pop(key))
        self.expire(key)

    def targets(self) -> dict[str, int]:
        return {
            each: sum(map(len, target.values())) for each, target in self.consumer.targets.items()
        }


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr(regular_expressions, "_SLICE", 1)
    monkeypatch.setattr(assignors.Pace, "is_over", lambda *_: True)
    return Jobs()


@pytest.mark.parametrize("first", [assignment_timer, regex_timer])
def test_an_assignment_and_expressions_that_both_take_long_are_both_done(
    jobs: Jobs, first: object
) -> None:
    jobs.beat("m1", *(f"a{number}" for number in range(TOPICS)))
    jobs.beat("m2", regex="a.*")
    timers = [assignment_timer(GROUP), regex_timer(GROUP)]
    for key in sorted(timers, key=lambda key: key != first(GROUP)):  # type: ignore[operator]
        jobs.fire(key)
    jobs.sleep(5_000)
    assert jobs.consumer.regexes["a.*"].topics == tuple(f"a{number}" for number in range(TOPICS))
    assert jobs.consumer.state is not GroupState.ASSIGNING
    assert sum(jobs.targets().values()) == TOPICS
    assert len(jobs.targets()) == 2


def test_an_expression_that_comes_while_others_are_resolved_does_not_wait_for_the_refresh(
    jobs: Jobs,
) -> None:
    jobs.beat("m1", regex="a.*")
    jobs.fire(regex_timer(GROUP))
    jobs.beat("m2", regex="a[0-9]")
    jobs.sleep(5_000)
    assert set(jobs.consumer.regexes) == {"a.*", "a[0-9]"}
    assert jobs.consumer.state is not GroupState.ASSIGNING
    assert len(jobs.targets()) == 2
