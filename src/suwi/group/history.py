"""Why groups rebalanced: the trigger, who caused it, and for how long who stood still.

Kept in the coordinator's memory, the newest of each group: `add` is told when a rebalance has
ended, `of` is asked by people. Lost with the process.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

_PER_GROUP_MAX: Final = 100
_IN_ALL_MAX: Final = 10_000


class Trigger(Enum):
    JOIN = "join"
    LEAVE = "leave"
    SESSION_TIMEOUT = "session timeout"
    REBALANCE_TIMEOUT = "rebalance timeout"
    SYNC_TIMEOUT = "sync timeout"
    SUBSCRIPTION_CHANGE = "subscription change"
    LEADER_REJOINED = "leader rejoined"
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
    """-1 while it goes on."""
    members: int = 0
    stood_still_ms: dict[str, int] | None = None
    """By member how long it had no assignment, in the classic protocol from its join on."""

    @property
    def pause_ms(self) -> int:
        return self.ended_ms - self.began_ms if self.ended_ms >= 0 else -1


class History:
    def __init__(self) -> None:
        self._by_group: dict[str, deque[Rebalance]] = {}
        self._all: deque[Rebalance] = deque()

    def add(self, rebalance: Rebalance) -> None:
        self._by_group.setdefault(rebalance.group_id, deque(maxlen=_PER_GROUP_MAX)).append(
            rebalance
        )
        self._all.append(rebalance)
        while len(self._all) > _IN_ALL_MAX:
            oldest = self._all.popleft()
            of_group = self._by_group.get(oldest.group_id)
            if of_group and of_group[0] is oldest:
                of_group.popleft()
                if not of_group:
                    del self._by_group[oldest.group_id]

    def of(self, group_id: str) -> list[Rebalance]:
        """The oldest first."""
        return list(self._by_group.get(group_id, ()))
