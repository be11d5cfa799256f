"""A coordinator of consumer groups with a clock set by hand, a log, timers and clients."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event, TimerKey
from suwi.coordinator.record import CoordinatorRecord
from suwi.coordinator.topics import Topic
from suwi.env.slices import run_to_end
from suwi.group.consumer_coordinator import ConsumerCoordinator
from suwi.group.consumer_group import (
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroups,
    HeartbeatRequest,
    HeartbeatResponse,
)
from suwi.group.group_coordinator_shard import GROUP_RECORDS
from suwi.group.history import Rebalance
from suwi.group.target_assignment import Job, metadata_hash
from suwi.model.ids import TopicId

GROUP = "g"


def a_call() -> Call[Any]:
    """Whose method is called by the test itself."""
    return Call(lambda _machine, _asked, _event: None, None)


class Image:
    """The topics of a cluster. A change makes another image."""

    def __init__(self, topics: Iterable[Topic] = (), version: int = 0) -> None:
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self._version = version

    @property
    def version(self) -> int:
        return self._version

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: TopicId) -> Topic | None:
        return self._by_id.get(topic_id)

    def names(self) -> Sequence[str]:
        return list(self._by_name)

    def with_topic(self, name: str, partitions: int, number: int | None = None) -> "Image":
        """Created, given partitions, or (with another number) made anew."""
        known = self._by_name.get(name)
        if number is not None or known is None:
            topic_id = TopicId(UUID(int=number if number is not None else _number(name)))
        else:
            topic_id = known.topic_id
        others = {n: t for n, t in self._by_name.items() if n != name}
        return Image([*others.values(), Topic(topic_id, name, partitions)], self.version + 1)

    def without(self, name: str) -> "Image":
        others = (topic for topic in self._by_name.values() if topic.name != name)
        return Image(others, self.version + 1)


def _number(name: str) -> int:
    return int.from_bytes(name.encode()) + 1


def topic_id(name: str) -> TopicId:
    return TopicId(UUID(int=_number(name)))


def compact(records: Sequence[CoordinatorRecord], keep: Callable[[int], bool]) -> list[Any]:
    """Of each key the last record, and of the earlier ones those that `keep` names."""
    last = {record.key: at for at, record in enumerate(records)}
    return [r for at, r in enumerate(records) if last[r.key] == at or keep(at)]


def replayed(records: Iterable[CoordinatorRecord]) -> dict[str, ConsumerGroup]:
    groups = ConsumerGroups()
    for record in records:
        groups.replay(record)
    return {group.group_id: group for group in groups}


class World:
    def __init__(self, image: Image | None = None, **config: Any) -> None:
        ids = count(1)
        self.config = ConsumerGroupConfig(**{"assignment_interval_ms": 0, **config})
        self.new_coordinator = lambda: ConsumerCoordinator(
            lambda group_id: self.config, lambda: f"made-{next(ids)}"
        )
        self.coordinator = self.new_coordinator()
        self.image = image or Image().with_topic("a", 4).with_topic("b", 4)
        self.groups = ConsumerGroups()
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[TimerKey, int] = {}
        self.rebalances: list[Rebalance] = []
        self.jobs: list[Job] = []
        self.now_ms = 1_000

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups.get(GROUP)
        assert group is not None
        return group

    def event(self) -> Event:
        """An event of a request, in the way of the shard's."""
        return Event(self.now_ms, a_call(), self.image)  # type: ignore[arg-type]

    def carry_out(self, event: Event) -> list[CoordinatorRecord]:
        """As the runtime does: each record goes through its bytes."""
        for record in event.records:
            decoded = GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record))
            assert decoded == record
            self.log.append(record)
            assert self.groups.replay(record) is None
        for key, deadline_ms in event.timers.items():
            if deadline_ms is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = deadline_ms
        self.rebalances += event.notices
        return event.records

    def send(self, request: HeartbeatRequest) -> HeartbeatResponse:
        event = self.event()
        group = self.groups.get(request.group_id)
        response = run_to_end(self.coordinator.heartbeat(group, request, event))
        if response.error is not ErrorCode.none:
            assert event == event.part(), "what is refused changes nothing"
        self.carry_out(event)
        return response

    def advance(self, ms: int, *, run_jobs: bool = True) -> None:
        """Let time pass, timer by timer."""
        end_ms = self.now_ms + ms
        while True:
            due = min(self.timers, key=lambda key: (self.timers[key], str(key)), default=None)
            if due is None or self.timers[due] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(due))
            group = self.groups.get(str(due[1]))  # type: ignore[index]
            if group is not None:
                event = self.event()
                job = run_to_end(self.coordinator.timer_expired(group, due, event))
                self.carry_out(event)
                if job is not None:
                    self.jobs.append(job)
                    if run_jobs:
                        self.finish_jobs()
        self.now_ms = end_ms

    def finish_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            deque(job.running(), 0)
            group = self.groups.get(job.group_id)
            if group is not None:
                event = self.event()
                deque(self.coordinator.job_done(group, job, event), 0)
                self.carry_out(event)

    def change_topics(self, image: Image, *, tell: bool = True) -> None:
        self.image = image
        for group in list(self.groups) if tell else ():
            event = self.event()
            deque(self.coordinator.updates.topics_changed(group, event), 0)
            self.carry_out(event)

    def fail_over(self) -> None:
        """Another broker has replayed the log; nothing volatile is left."""
        self.coordinator = self.new_coordinator()
        self.groups = ConsumerGroups()
        self.timers.clear()
        self.jobs.clear()
        for record in self.log:
            self.groups.replay(record)
        for group in self.groups:
            event = self.event()
            deque(self.coordinator.loaded(group, event), 0)
            self.carry_out(event)

    # -- what must hold --------------------------------------------------------------------------

    def check_one_owner(self) -> None:
        """G17: assigned or to be revoked, a partition belongs to one member."""
        for group in self.groups:
            owner: dict[tuple[TopicId, int], str] = {}
            for member in group.members.values():
                for owned in (member.current.assigned, member.current.pending_revocation):
                    for topic, partitions in owned.items():
                        for partition in partitions:
                            assert (topic, partition) not in owner
                            owner[topic, partition] = member.member_id
                            assert group.owner(topic, partition) == member.member_id

    def check_hashes(self) -> None:
        """G21: with all members told of the image, each group was compared with all its topics."""
        for group in self.groups:
            if not group.is_empty:
                found = run_to_end(metadata_hash(group.subscribed_topics(), self.image))
                assert group.metadata_hash == found

    def check_replay(self, random: Random | None = None) -> None:
        """H0: live state is what a replay gives, of the log and of the compacted log."""
        live = {group.group_id: group for group in self.groups}
        assert replayed(self.log) == live
        assert replayed(compact(self.log, lambda at: False)) == live
        if random is not None:
            half = len(self.log) // 2
            assert replayed(compact(self.log, lambda at: at > half)) == live
            assert replayed(compact(self.log, lambda at: random.random() < 0.5)) == live


@dataclass
class Client:
    """A member that follows the protocol: it revokes when told, and says what it owns."""

    world: World
    member_id: str
    names: tuple[str, ...] | None = ("a",)
    instance_id: str | None = None
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: dict[TopicId, tuple[int, ...]] = field(default_factory=dict)
    must_send_all: bool = True
    last: HeartbeatResponse = field(default_factory=HeartbeatResponse)

    def request(self, **changes: Any) -> HeartbeatRequest:
        request = HeartbeatRequest(
            GROUP, self.member_id, self.epoch, self.instance_id, client_id="c", client_host="/h"
        )
        if self.must_send_all or self.epoch == 0:
            request = request._replace(
                rebalance_timeout_ms=30_000,
                topic_names=self.names,
                topic_regex=self.regex,
                server_assignor=self.assignor,
                owned=dict(self.owned),
            )
        return request._replace(**changes)

    def beat(self, *, is_lost: bool = False, **changes: Any) -> HeartbeatResponse:
        """A heartbeat; its reply may be lost."""
        response = self.world.send(self.request(**changes))
        if is_lost:
            self.must_send_all = True
            return response
        self.last = response
        self.must_send_all = False
        if response.error in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.owned, self.epoch, self.must_send_all = {}, 0, True
        elif response.error is ErrorCode.none:
            self.epoch = response.member_epoch
            if response.assignment is not None and response.assignment != self.owned:
                self.owned = dict(response.assignment)
                self.must_send_all = True
        return response

    def subscribe(self, *names: str) -> HeartbeatResponse:
        self.names, self.must_send_all = names, True
        return self.beat()

    def leave(self, epoch: int = -1) -> HeartbeatResponse:
        response = self.beat(member_epoch=epoch, owned=None)
        self.epoch, self.owned, self.must_send_all = 0, {}, True
        return response

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle(world: World, clients: Iterable[Client], rounds: int = 20) -> None:
    """All send heartbeats until nothing changes."""
    for _ in range(rounds):
        before = len(world.log)
        world.advance(1)
        for client in clients:
            client.beat()
        world.check_one_owner()
        if len(world.log) == before and not any(c.must_send_all for c in clients):
            return
    raise AssertionError("the group does not settle")


def two_members() -> tuple[World, Client, Client]:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    settle(world, [first, second])
    return world, first, second
