"""Why groups rebalanced: the trigger, who caused it, and how long which member stood still.

The newest rebalances of each group are kept in memory (`add`), for administrators (`of`).
Invariant: the number of rebalances, of their members, and the length of texts are limited.
"""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from suwi.metadata.image import ClusterImage

_PER_GROUP_MAX: Final = 100
_IN_ALL_MAX: Final = 10_000
_TOPICS_MAX: Final = 10_000
_MEMBERS_IN_ALL_MAX: Final = 100_000
_TEXT_CHARACTERS_MAX: Final = 255
"""Of ids and reasons, which come from clients."""


class Trigger(Enum):
    JOIN = "join"
    LEAVE = "leave"
    SESSION_TIMEOUT = "session timeout"
    REBALANCE_TIMEOUT = "rebalance timeout"
    SYNC_TIMEOUT = "sync timeout"
    SUBSCRIPTION_CHANGE = "subscription change"
    LEADER_REJOINED = "leader rejoined"
    MEMBER_REJOINED = "member rejoined"
    """With the same topics: the second step of a cooperative rebalance, after partitions were given
    up."""
    STATIC_MEMBER_REPLACED = "static member replaced"
    ASSIGNMENT_TOO_LARGE = "assignment too large"
    NEW_PARTITIONS = "new partitions"
    TOPIC_DELETED = "topic deleted"
    COORDINATOR_MOVED = "coordinator moved"
    DOWNGRADE = "downgrade to the classic protocol"


@dataclass(frozen=True, slots=True)
class Cause:
    """What made a group rebalance."""

    trigger: Trigger
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    """The client's own words (JoinGroup v8, LeaveGroup v5)."""


@dataclass(slots=True)
class Rebalance:
    group_id: str
    cause: Cause
    began_ms: int
    from_generation: int
    to_generation: int = -1
    ended_ms: int = -1
    """-1 while the rebalance is under way."""
    members: int = 0
    stood_still_ms: dict[str, int] | None = None
    """By member how long it had no assignment. In the classic protocol that is from its first
    JoinGroup of this rebalance until the leader's assignment arrived: an eager member gives up its
    partitions before it joins. Static members that were away, and did not join, are left out."""

    @property
    def pause_ms(self) -> int:
        return self.ended_ms - self.began_ms if self.ended_ms >= 0 else -1


@dataclass(eq=False)
class History:
    per_group_max: int = _PER_GROUP_MAX
    in_all_max: int = _IN_ALL_MAX
    members_in_all_max: int = _MEMBERS_IN_ALL_MAX
    _by_group: dict[str, deque[int]] = field(default_factory=dict)
    _all: OrderedDict[int, Rebalance] = field(default_factory=OrderedDict)
    """By number, the oldest first."""
    _added: int = 0
    _members: int = 0

    def add(self, rebalance: Rebalance) -> None:
        _shorten(rebalance)
        self._added += 1
        self._all[self._added] = rebalance
        self._members += _size(rebalance)
        of_group = self._by_group.setdefault(rebalance.group_id, deque())
        of_group.append(self._added)
        if len(of_group) > self.per_group_max:
            self._drop(of_group[0])
        while len(self._all) > self.in_all_max or self._members > self.members_in_all_max:
            self._drop(next(iter(self._all)))

    def _drop(self, number: int) -> None:
        """The oldest of its group."""
        dropped = self._all.pop(number)
        self._members -= _size(dropped)
        of_group = self._by_group[dropped.group_id]
        of_group.popleft()
        if not of_group:
            del self._by_group[dropped.group_id]

    def of(self, group_id: str) -> list[Rebalance]:
        """The oldest first."""
        return [self._all[number] for number in self._by_group.get(group_id, ())]


def _shorten(rebalance: Rebalance) -> None:
    cause = rebalance.cause
    rebalance.cause = Cause(
        cause.trigger,
        *(
            text[:_TEXT_CHARACTERS_MAX]
            for text in (cause.member_id, cause.client_id, cause.client_host, cause.reason)
        ),
    )
    rebalance.stood_still_ms = {
        member[:_TEXT_CHARACTERS_MAX]: still_ms
        for member, still_ms in (rebalance.stood_still_ms or {}).items()
    }


def _size(rebalance: Rebalance) -> int:
    return len(rebalance.stood_still_ms or ())


# -- changes of topics -----------------------------------------------------------------------------

_UNSAID: Final = (Trigger.LEADER_REJOINED, Trigger.MEMBER_REJOINED)


class _Change(NamedTuple):
    trigger: Trigger
    at_ms: int


class TopicChanges:
    """The last changes of topics, which explain rebalances of classic groups: the group's leader
    notices a change by itself and joins again without saying why."""

    def __init__(self) -> None:
        self._by_topic: OrderedDict[str, _Change] = OrderedDict()
        """The last change of each topic, the oldest first."""

    def apply_image(self, old: ClusterImage, new: ClusterImage, now_ms: int) -> None:
        for name, before in old.topics.items():
            after = new.topics.get(name)
            if after is before:
                continue
            if after is None or after.id != before.id:
                self._add(name, _Change(Trigger.TOPIC_DELETED, now_ms))
            elif len(after.partitions) > len(before.partitions):
                self._add(name, _Change(Trigger.NEW_PARTITIONS, now_ms))

    def _add(self, topic: str, change: _Change) -> None:
        self._by_topic[topic] = change
        self._by_topic.move_to_end(topic)
        if len(self._by_topic) > _TOPICS_MAX:
            self._by_topic.popitem(last=False)

    def explain(self, cause: Cause, topics: Iterable[str], since_ms: int) -> Cause:
        """The cause of a rebalance of a group that reads these topics and rebalanced last at
        `since_ms`. If a topic has changed since, that is the cause."""
        if cause.trigger not in _UNSAID:
            return cause
        for topic in topics:
            change = self._by_topic.get(topic)
            if change is not None and change.at_ms >= since_ms:
                reason = cause.reason or f"topic {topic}"
                return dataclasses.replace(cause, trigger=change.trigger, reason=reason)
        return cause
