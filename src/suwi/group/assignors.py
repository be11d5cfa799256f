"""The assignors of consumer groups: `uniform` and `range`, by the names Kafka gives them. Pure.

Each is a generator, so that a large group is assigned in slices: it yields after some thousand
steps, and returns the partitions of each member.
Invariants: each partition of a topic with a subscriber is given to exactly one subscriber; the
same input gives the same output, in the order of its members.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from suwi.env.slices import Pace, Slices, sort
from suwi.group.consumer_group import Target
from suwi.model.ids import TopicId

_ROUNDS_MAX: Final = 16
"""Rounds of balancing members with different subscriptions. Most groups need two."""

Assignment: TypeAlias = dict[str, Target]


class MemberSpec(NamedTuple):
    instance_id: str | None
    topics: frozenset[TopicId]
    target: Target
    """What it was assigned before."""


class GroupSpec(NamedTuple):
    members: Mapping[str, MemberSpec]
    partitions: Mapping[TopicId, int]
    """The number of partitions of each topic that has a subscriber."""

    @property
    def subscriptions(self) -> set[frozenset[TopicId]]:
        return {member.topics for member in self.members.values()}


Assignor: TypeAlias = Callable[[GroupSpec], Slices[Assignment]]


# -- range ---------------------------------------------------------------------------------------


def assign_range(spec: GroupSpec) -> Slices[Assignment]:
    """Each member gets adjoining partitions of each topic. Topics with equal numbers of partitions
    and the same subscribers are divided alike: a member has the same partition numbers of each.

    Static members come first, by instance id: a restart does not change their places.
    """
    order = sorted(
        spec.members,
        key=lambda member_id: _range_order(member_id, spec.members[member_id].instance_id),
    )
    pace, ordered = Pace(), {}
    for topics in spec.subscriptions:
        ordered[topics] = yield from _ordered(topics, pace)
    subscribers: dict[TopicId, int] = {}
    for member_id in order:
        topics = spec.members[member_id].topics
        for topic_id in topics:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
            if pace.is_over(1):
                yield
        if pace.is_over(1):
            yield
    begins = dict.fromkeys(subscribers, 0)
    served = dict.fromkeys(subscribers, 0)
    found: Assignment = {}
    for member_id in order:
        topics = spec.members[member_id].topics
        target: dict[TopicId, tuple[int, ...]] = {}
        for topic_id in ordered[topics]:
            quota, extra = divmod(spec.partitions[topic_id], subscribers[topic_id])
            begin = begins[topic_id]
            begins[topic_id] = end = begin + quota + (served[topic_id] < extra)
            served[topic_id] += 1
            if begin < end:
                target[topic_id] = tuple(range(begin, end))
            if pace.is_over(3):
                yield
        found[member_id] = target
        if pace.is_over(1):
            yield
    return {member_id: found[member_id] for member_id in spec.members}


def _range_order(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (instance_id is None, member_id if instance_id is None else instance_id)


def _ordered(topics: frozenset[TopicId], pace: Pace) -> Slices[list[TopicId]]:
    return sort(topics, lambda topic_id: topic_id.int, pace)


# -- uniform -------------------------------------------------------------------------------------


def assign_uniform(spec: GroupSpec) -> Slices[Assignment]:
    """The same number of partitions for each member as far as possible, with as few moves as
    possible."""
    if len(spec.subscriptions) <= 1:
        return (yield from _assign_alike(spec))
    return (yield from _Balancer(spec).assign())


def _assign_alike(spec: GroupSpec) -> Slices[Assignment]:
    """All members have the same subscription: their numbers differ by one at most.

    A member that has more than the rest keeps one more, so that nothing moves without need.
    """
    if not spec.members:
        return {}
    pace = Pace()
    topics = yield from _ordered(next(iter(spec.members.values())).topics, pace)
    free: dict[TopicId, bytearray] = {}
    for topic_id in topics:
        free[topic_id] = bytearray(b"\1" * spec.partitions[topic_id])
        if pace.is_over(1):
            yield
    kept: dict[str, list[tuple[TopicId, int]]] = {}
    for member_id, member in spec.members.items():
        kept[member_id] = yield from _claim(member, free, pace)
        if pace.is_over(4):
            yield
    quotas = yield from _shrink_to_quotas(kept, free, pace)
    unassigned = ((t, p) for t in topics for p, is_free in enumerate(free[t]) if is_free)
    found: Assignment = {}
    for member_id, partitions in kept.items():
        for _ in range(quotas[member_id] - len(partitions)):
            partitions.append(next(unassigned))
            if pace.is_over(1):
                yield
        found[member_id] = yield from _target(partitions, pace)
        if pace.is_over(4):
            yield
    return found


def _shrink_to_quotas(
    kept: Mapping[str, list[tuple[TopicId, int]]], free: Mapping[TopicId, bytearray], pace: Pace
) -> Slices[dict[str, int]]:
    """How many partitions each gets. What a member has beyond that is free again."""
    minimum, extras = divmod(sum(map(len, free.values())), len(kept))
    quotas = dict.fromkeys(kept, minimum)
    for has_more in (True, False):
        for member_id, partitions in kept.items():
            if extras and (len(partitions) > minimum) is has_more:
                quotas[member_id] += 1
                extras -= 1
    if pace.is_over(len(kept)):
        yield
    for member_id, quota in quotas.items():
        for topic_id, partition in kept[member_id][quota:]:
            free[topic_id][partition] = 1
            if pace.is_over(1):
                yield
        del kept[member_id][quota:]
    return quotas


def _claim(
    member: MemberSpec, free: Mapping[TopicId, bytearray], pace: Pace
) -> Slices[list[tuple[TopicId, int]]]:
    """What the member had before, without partitions that no longer exist or were given to another
    member."""
    claimed = []
    for topic_id, partitions in member.target.items():
        if pace.is_over(len(partitions) + 1):
            yield
        is_free = free.get(topic_id)
        if is_free is None or topic_id not in member.topics:
            continue
        for partition in partitions:
            if partition < len(is_free) and is_free[partition]:
                is_free[partition] = 0
                claimed.append((topic_id, partition))
    return claimed


def _target(partitions: list[tuple[TopicId, int]], pace: Pace) -> Slices[Target]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
        if pace.is_over(1):
            yield
    target: dict[TopicId, tuple[int, ...]] = {}
    for topic_id, found in by_topic.items():
        target[topic_id] = tuple(sorted(found))
        if pace.is_over(len(found) // 4 + 1):
            yield
    return target


class _Balancer:
    """Members with different subscriptions. Each move makes the numbers more even, so that two
    members with the same subscription differ by one partition at most in the end."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._ids = list(spec.members)
        self._loads = [0] * len(self._ids)
        self._owners: dict[TopicId, list[int]] = {}
        self._subscribers: dict[TopicId, list[int]] = {}
        self._pace = Pace()

    def assign(self) -> Slices[Assignment]:
        yield from self._claim()
        # Topics with few subscribers are assigned first.
        topics = sorted(
            self._owners, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id.int)
        )
        for topic_id in topics:
            self._give(topic_id)
            if self._is_over(topic_id):
                yield
        for _ in range(_ROUNDS_MAX):
            moved = False
            for topic_id in topics:
                moved |= self._balance(topic_id)
                if self._is_over(topic_id):
                    yield
            if not moved:
                break
        return (yield from self._result(topics))

    def _is_over(self, topic_id: TopicId) -> bool:
        return self._pace.is_over(len(self._subscribers[topic_id]) + len(self._owners[topic_id]))

    def _claim(self) -> Slices[None]:
        ordered = {}
        for topics in self._spec.subscriptions:
            ordered[topics] = yield from _ordered(topics, self._pace)
        free: dict[TopicId, bytearray] = {}
        for at, member in enumerate(self._spec.members.values()):
            for topic_id in ordered[member.topics]:
                if topic_id not in free:
                    count = self._spec.partitions[topic_id]
                    free[topic_id] = bytearray(b"\1" * count)
                    self._owners[topic_id] = [-1] * count
                    self._subscribers[topic_id] = []
                self._subscribers[topic_id].append(at)
                if self._pace.is_over(2):
                    yield
            for topic_id, partition in (yield from _claim(member, free, self._pace)):
                self._owners[topic_id][partition] = at
                self._loads[at] += 1
                if self._pace.is_over(1):
                    yield

    def _heap(self, topic_id: TopicId) -> list[tuple[int, int]]:
        heap = [(self._loads[at], at) for at in self._subscribers[topic_id]]
        heapq.heapify(heap)
        return heap

    def _give(self, topic_id: TopicId) -> None:
        owners = self._owners[topic_id]
        unassigned = [partition for partition, owner in enumerate(owners) if owner < 0]
        if not unassigned:
            return
        heap = self._heap(topic_id)
        for partition in unassigned:
            load, at = heap[0]
            owners[partition] = at
            self._loads[at] = load + 1
            heapq.heapreplace(heap, (load + 1, at))

    def _balance(self, topic_id: TopicId) -> bool:
        owners, loads = self._owners[topic_id], self._loads
        least = min(map(loads.__getitem__, self._subscribers[topic_id]))
        if max(map(loads.__getitem__, owners), default=0) < least + 2:
            return False
        heap = self._heap(topic_id)
        moved = False
        for partition, owner in enumerate(owners):
            while heap[0][0] != loads[heap[0][1]]:
                heapq.heappop(heap)
            load, at = heap[0]
            if loads[owner] < load + 2:
                continue
            owners[partition] = at
            loads[at] = load + 1
            loads[owner] -= 1
            heapq.heapreplace(heap, (load + 1, at))
            heapq.heappush(heap, (loads[owner], owner))
            moved = True
        return moved

    def _result(self, topics: list[TopicId]) -> Slices[Assignment]:
        found: list[dict[TopicId, list[int]]] = [{} for _ in self._ids]
        for topic_id in topics:
            for partition, owner in enumerate(self._owners[topic_id]):
                found[owner].setdefault(topic_id, []).append(partition)
            if self._is_over(topic_id):
                yield
        assignment: Assignment = {}
        for member_id, of_one in zip(self._ids, found, strict=True):
            target: dict[TopicId, tuple[int, ...]] = {}
            for topic_id, partitions in of_one.items():
                target[topic_id] = tuple(partitions)
                if self._pace.is_over(2):
                    yield
            assignment[member_id] = target
        return assignment


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
