"""What members of groups asked and were told, in the order in which it happened.

`simulation/noting_coordinator.py` writes it down at the wire; `simulation/checkers/groups.py` and
`simulation/checkers/group_offsets.py` say whether correct coordinators could have answered so.
Invariant: every commit has an id of its own, which is stored with the offset, so that an offset
that is read tells which commit it is of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.history import Outcome


class Who(NamedTuple):
    """A member in one generation."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    """Or the member epoch."""
    is_consumer: bool = False
    """A member of the consumer protocol (KIP-848)."""

    @property
    def owner(self) -> str:
        """Of a static member all lives are one owner."""
        return self.instance_id or self.member_id

    def __str__(self) -> str:
        return f"{self.owner} of {self.group} in generation {self.generation}"


@dataclass(slots=True, eq=False)
class Commit:
    id: str
    who: Who
    offsets: dict[str, int]
    """By partition."""
    sent: int
    answered: int | None = None
    outcome: Outcome = Outcome.UNKNOWN

    def __str__(self) -> str:
        return f"commit {self.id} of {self.who}"


class Joined(NamedTuple):
    who: Who
    sent: int
    answered: int


class Synced(NamedTuple):
    who: Who
    partitions: tuple[str, ...]
    answered: int


class OffsetRead(NamedTuple):
    group: str
    partition: str
    found: tuple[int, str] | None
    """The offset and the commit's id; None where there is no offset."""
    sent: int
    answered: int


@dataclass(slots=True, eq=False)
class Held:
    """A partition of a member of the consumer protocol, from when it heard of it until it was
    about to tell the coordinator that it has given it up."""

    who: Who
    partition: str
    since: int
    until: int | None = None


class Beat(NamedTuple):
    """A heartbeat of a member of the consumer protocol that was accepted."""

    member_id: str
    sent: int


@dataclass(slots=True)
class GroupHistory:
    commits: dict[str, Commit] = field(default_factory=dict)
    joins: list[Joined] = field(default_factory=list)
    syncs: list[Synced] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    assigned: dict[tuple[str, int], int] = field(default_factory=dict)
    """When a leader first sent the assignment of a generation."""
    _ticks: int = 0

    @property
    def is_mixed(self) -> bool:
        """Whether members of both protocols were in the group. Its numbers then begin again when
        a group without members changes its protocol, as in Apache Kafka."""
        return bool(self.beats and self.syncs)

    def tick(self) -> int:
        """One moment later than all before."""
        self._ticks += 1
        return self._ticks

    def commit(self, who: Who, offsets: Mapping[str, int]) -> Commit:
        """A member begins to send it."""
        commit = Commit(f"c{len(self.commits)}", who, dict(offsets), self.tick())
        self.commits[commit.id] = commit
        return commit

    def committed(self, commit: Commit, outcome: Outcome) -> None:
        commit.answered, commit.outcome = self.tick(), outcome

    def assigns(self, group: str, generation: int) -> None:
        """A leader begins to send its assignment."""
        self.assigned.setdefault((group, generation), self.tick())

    def hold(self, who: Who, partition: str) -> Held:
        """A member was given a partition."""
        held = Held(who, partition, self.tick())
        self.held.append(held)
        return held

    def release(self, held: Held) -> None:
        held.until = self.tick()
