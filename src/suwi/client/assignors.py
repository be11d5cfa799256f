"""How the leader of a classic group divides partitions among its members. Pure.

`ASSIGNORS` has them by the name that all clients know them by. Each gets the members in order, what
they subscribe to, and how many partitions the topics have; a topic that does not exist has none.
Invariants: no partition is given to two members, none to a member that does not subscribe to it;
a cooperative assignor gives nothing away that another member has not given up (KIP-429).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import NO_GENERATION, Subscription

Subscriptions: TypeAlias = Mapping[str, Subscription]
"""By member id, in the order in which members get partitions."""
Assignments: TypeAlias = dict[str, list[TopicPartition]]

_GENERATION: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Assignor:
    name: str
    is_cooperative: bool
    """Members keep what they own during a rebalance, and give up only what they are told to."""
    assign: Callable[[Subscriptions, Mapping[str, int]], Assignments]


def assign_range(members: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    """Each subscriber gets a range of each topic; the first ones get one partition more."""
    assigned: Assignments = {member: [] for member in members}
    for topic, number in partitions.items():
        subscribers = [member for member, wants in members.items() if topic in wants.topics]
        if not subscribers:
            continue
        each, more = divmod(number, len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            end = first + each + (place < more)
            assigned[member] += [_partition(topic, index) for index in range(first, end)]
            first = end
    return assigned


def assign_round_robin(members: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    """The partitions of all topics, by name, to the subscribers in turn."""
    assigned: Assignments = {member: [] for member in members}
    turns = list(members)
    for topic, number in sorted(partitions.items()):
        for index in range(number if any(topic in m.topics for m in members.values()) else 0):
            while topic not in members[turns[0]].topics:
                turns.append(turns.pop(0))
            assigned[turns[0]].append(_partition(topic, index))
            turns.append(turns.pop(0))
    return assigned


def assign_cooperative_sticky(members: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    """Balanced, with as few moves as possible. A partition that moves has no owner for one
    generation."""
    assigned = _balance(members, partitions)
    claimed: dict[TopicPartition, list[str]] = {}
    for member, wants in members.items():
        for partition in wants.owned:
            claimed.setdefault(partition, []).append(member)
    return {
        member: sorted(
            partition
            for partition in given
            if all(claimant == member for claimant in claimed.get(partition, ()))
        )
        for member, given in assigned.items()
    }


def _balance(members: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    assigned: Assignments = {member: [] for member in members}
    owners = _owners(members)
    free: list[tuple[TopicPartition, list[str]]] = []
    for topic, number in partitions.items():
        candidates = [member for member, wants in members.items() if topic in wants.topics]
        for partition in (_partition(topic, index) for index in range(number)):
            owner = owners.get(partition)
            if owner in candidates:
                assigned[owner].append(partition)
            elif candidates:
                free.append((partition, candidates))
    for partition, candidates in free:
        poorest = min(candidates, key=lambda member: len(assigned[member]))
        assigned[poorest].append(partition)
    while _move_one(members, assigned):
        pass
    return assigned


def _owners(members: Subscriptions) -> dict[TopicPartition, str]:
    """The owners in the newest generation; a partition that two members claim has none."""
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, wants in members.items():
        generation = generation_of(wants)
        for partition in wants.owned:
            known = newest.get(partition)
            if known is None or known[0] < generation:
                newest[partition] = (generation, member)
            elif known[0] == generation:
                newest[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in newest.items() if owner is not None}


def generation_of(subscription: Subscription) -> int:
    """Before v2 of the protocol it is in the user data of Java's sticky assignors."""
    data = subscription.user_data
    if subscription.generation == NO_GENERATION and data and len(data) == _GENERATION.size:
        return int(_GENERATION.unpack(data)[0])
    return subscription.generation


def _move_one(members: Subscriptions, assigned: Assignments) -> bool:
    """Move a partition from a member to one that has at least two less. False if there is none."""
    by_load = sorted(members, key=lambda member: len(assigned[member]))
    for rich in reversed(by_load):
        for poor in by_load:
            if len(assigned[rich]) - len(assigned[poor]) < 2:
                break
            for partition in reversed(assigned[rich]):
                if partition.topic in members[poor].topics:
                    assigned[rich].remove(partition)
                    assigned[poor].append(partition)
                    return True
    return False


def _partition(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


ASSIGNORS: Final = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", False, assign_range),
        Assignor("roundrobin", False, assign_round_robin),
        Assignor("cooperative-sticky", True, assign_cooperative_sticky),
    )
}
