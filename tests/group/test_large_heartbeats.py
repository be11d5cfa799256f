"""Heartbeats of members with thousands of topics or partitions take several turns of the loop."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.coordinator.record import RecordFacts
from suwi.coordinator.topics import Topic
from suwi.group.consumer_group import HeartbeatRequest, HeartbeatResponse
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.model.ids import TopicId
from tests.group.consumer_world import a_call
from tests.group.driver import GROUP, Driver

LOOKED_UP_AT_ONCE = 5_000


class CountingTopics:
    """Topics of a cluster; counts how often one is looked up in each slice."""

    version = 1

    def __init__(self, topics: int, partitions: int) -> None:
        random = Random(1)
        self._by_name = {
            name: Topic(TopicId(UUID(int=random.getrandbits(128))), name, partitions)
            for name in (f"topic-{number}" for number in range(topics))
        }
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.looked_up = 0

    def by_name(self, name: str) -> Topic | None:
        self.looked_up += 1
        return self._by_name.get(name)

    def by_id(self, topic_id: TopicId) -> Topic | None:
        self.looked_up += 1
        return self._by_id.get(topic_id)

    def names(self) -> Sequence[str]:
        return list(self._by_name)


class LargeGroup(Driver):
    def __init__(self, topics: int, partitions: int = 1) -> None:
        self.topics = CountingTopics(topics, partitions)
        self.slices = 0
        super().__init__()

    def _new_machine(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self._config, lambda: "id")

    def beat(
        self,
        member_id: str,
        epoch: int,
        names: Sequence[str] | None = None,
        owned: dict[TopicId, list[int]] | None = None,
    ) -> HeartbeatResponse:
        request = HeartbeatRequest(
            GROUP, member_id, epoch, rebalance_timeout_ms=30_000,
            topic_names=None if names is None else tuple(names), owned=owned,
        )  # fmt: skip
        event = Event(self.now_ms, a_call(), self.topics, 16 << 20)  # type: ignore[arg-type]
        self.slices = self.topics.looked_up = 0
        for _ in self.machine.consumer_heartbeat(request, event):
            self.slices += 1
            assert self.topics.looked_up <= LOOKED_UP_AT_ONCE
            self.topics.looked_up = 0
        assert self.topics.looked_up <= LOOKED_UP_AT_ONCE
        for offset, record in enumerate(event.records):
            for _ in self.machine.replay(record, RecordFacts(offset, False)) or ():
                pass
        ((_, response),) = event.replies
        assert isinstance(response, HeartbeatResponse)
        assert response.error is ErrorCode.none
        return response


@pytest.mark.parametrize(("topics", "partitions"), [(20_000, 1), (1_000, 100)])
def test_a_member_with_many_topics_joins_in_slices(topics: int, partitions: int) -> None:
    group = LargeGroup(topics, partitions)
    names = group.topics.names()
    assigned = group.beat("m1", 0, names, {}).assignment or {}
    assert sum(map(len, assigned.values())) == topics * partitions
    assert group.slices >= topics * partitions // LOOKED_UP_AT_ONCE
    owned = {topic_id: list(found) for topic_id, found in assigned.items()}
    group.beat("m1", 1, names[:-1], owned)
    assert group.slices >= topics // LOOKED_UP_AT_ONCE
