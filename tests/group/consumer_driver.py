"""The pure machine of groups with topics, driven by hand, for members of both protocols."""

from itertools import count

from suwi.coordinator.event import TimerKey
from suwi.group.consumer_group import ConsumerGroup, HeartbeatRequest, HeartbeatResponse
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from tests.group.consumer_world import Image
from tests.group.driver import GROUP, Driver, subscription

TOPICS = tuple(f"a{number}" for number in range(5))


class ConsumerDriver(Driver):
    def __init__(self) -> None:
        self.image = Image()
        for name in TOPICS:
            self.image = self.image.with_topic(name, 1)
        super().__init__()

    def _new_machine(self) -> GroupCoordinatorShard:
        ids = count(1)
        return GroupCoordinatorShard(self._config, lambda: f"made-{next(ids)}")

    def _topics(self) -> Image:  # type: ignore[override]
        return self.image

    @property
    def consumer(self) -> ConsumerGroup:
        group = self.machine.groups.consumer.get(GROUP)
        assert group is not None
        return group

    def beat(
        self,
        member_id: str,
        *names: str,
        regex: str | None = None,
        epoch: int = 0,
        group: str = GROUP,
    ) -> HeartbeatResponse:
        """Of the consumer protocol: a member joins, or is in this epoch."""
        request = HeartbeatRequest(
            group,
            member_id,
            epoch,
            rebalance_timeout_ms=30_000,
            topic_names=names,
            topic_regex=regex,
            owned={} if epoch == 0 else None,
            client_id="c",
            client_host="/h",
        )
        response: HeartbeatResponse = self.reply_to(
            GroupCoordinatorShard.consumer_heartbeat, request
        )
        return response

    def classic_members(self, members: int) -> list[str]:
        """Of a generation whose leader has assigned nothing."""
        waiting = [self.join(protocols=[("range", subscription("a0"))]) for _ in range(members)]
        while any(call in self.waiting for call in waiting):
            for member in list(self.group.members.values()):
                if member.awaiting_join is None:
                    self.join(member.member_id, protocols=[("range", subscription("a0"))])
        for member_id in self.group.members:
            self.sync(member_id)
        return list(self.group.members)

    def fire(self, key: TimerKey) -> None:
        """That timer is the next one to expire."""
        self.now_ms = max(self.now_ms, self.timers.pop(key))
        self.expire(key)

    def targets(self) -> dict[str, int]:
        """By member the number of its partitions."""
        targets = self.consumer.targets.items()
        return {member_id: sum(map(len, target.values())) for member_id, target in targets}
