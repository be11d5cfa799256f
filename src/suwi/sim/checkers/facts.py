"""What is known of a simulated cluster from the outside, at one moment.

`World` holds the replicas as their processes and disks show them, and the partitions' states as the
store has them. `suwi.sim.invariant_monitor` keeps it up to date and calls each checker with what
has changed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from suwi.controller.events import Event
from suwi.metadata.image import PartitionState
from suwi.model.ids import NodeId, TopicPartition


class Broken(AssertionError):
    """Something that must always hold does not."""


class LogId(NamedTuple):
    """One partition of one life of a topic. Its name is for people."""

    topic_id: UUID
    name: TopicPartition

    def __str__(self) -> str:
        return str(self.name)


class Batch(NamedTuple):
    """A batch as it lies in a log. Two that are equal hold the same records."""

    base: int
    last: int
    epoch: int
    crc: int
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1

    def __str__(self) -> str:
        return f"[{self.base}-{self.last} epoch {self.epoch} crc {self.crc:08x}]"


@dataclass(slots=True, eq=False)
class Replica:
    """One broker's copy of a partition."""

    node: NodeId
    log: LogId
    life: str = ""
    """Which life of the process has it open."""
    is_live: bool = True
    is_offline: bool = False
    """Its disk failed, perhaps in the middle of a change: nobody sees what it holds."""
    was_unclean_shutdown: bool = False
    """It lost power, and is not known to be whole again."""
    leads: bool = False
    leader_epoch: int = -1
    start: int = 0
    start_before: int = 0
    """Where it started before the last step, which may have moved the start either way."""
    stable: int = 0
    watermark: int = 0
    end: int = 0
    batches: list[Batch] = field(default_factory=list)
    """All that its log holds, in order."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Its leader epochs and where they start."""

    def __str__(self) -> str:
        return f"{self.log} on b{self.node}"

    def holds(self, batch: Batch) -> bool:
        return self.batch_at(batch.base) == batch

    def batch_at(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        number = first_from(self.batches, offset)
        if number < len(self.batches) and self.batches[number].base <= offset:
            return self.batches[number]
        return None

    def between(self, first: int, end: int) -> list[Batch]:
        """The batches that begin from `first` on and below `end`."""
        found = []
        for number in range(first_from(self.batches, first), len(self.batches)):
            batch = self.batches[number]
            if batch.base >= end:
                break
            if batch.base >= first:
                found.append(batch)
        return found


def first_from(batches: list[Batch], offset: int) -> int:
    """The number of the first batch that ends at or after an offset."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        if batches[middle].last < offset:
            low = middle + 1
        else:
            high = middle
    return low


class StateChange(NamedTuple):
    """One write to the store changed one partition; None: it did not exist, or no longer does."""

    log: LogId
    before: PartitionState | None
    after: PartitionState | None


class Rules(NamedTuple):
    """What a topic's configuration promises."""

    min_insync_replicas: int = 1
    unclean_election: bool = False


@dataclass(slots=True)
class World:
    replicas: dict[tuple[NodeId, LogId], Replica] = field(default_factory=dict)
    states: dict[LogId, PartitionState] = field(default_factory=dict)
    rules: dict[UUID, Rules] = field(default_factory=dict)
    lives: dict[NodeId, str] = field(default_factory=dict)
    """The life of each broker that the cluster counts on: one that has died since may be among
    them, one that has just begun is not yet."""
    controller: tuple[NodeId, int] | None = None
    """Who is in office, in which epoch."""
    now_s: float = 0.0

    def replicas_of(self, log: LogId) -> Iterator[Replica]:
        return (replica for replica in self.replicas.values() if replica.log == log)

    def replica(self, node: NodeId, log: LogId) -> Replica | None:
        return self.replicas.get((node, log))

    def rules_of(self, log: LogId) -> Rules:
        return self.rules.get(log.topic_id, Rules())

    def absolve(self, change: StateChange) -> None:
        """A replica that is let into the in-sync set again is whole. Not so if the life that the
        cluster counts on has just ended, in a power loss: nobody could know."""
        if change.before is None or change.after is None:
            return
        for node in set(change.after.isr) - set(change.before.isr):
            replica = self.replica(node, change.log)
            if replica is None:
                continue
            is_last_seen = self.lives.get(node, replica.life) == replica.life
            if replica.is_live == is_last_seen:
                replica.was_unclean_shutdown = False


class Checker:
    """Called with everything that changes; each checker listens to what concerns it."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        """Something about a replica changed; `appended` are the batches that are new in its log."""

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        """A log became shorter, before anything was appended again."""

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        """A new life opened a log; `before` is what it held. `safe_end`: after a power loss, up to
        where it was synced; 0 after a crash in the middle of a write; None after any other."""

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        """A write to the store changed partitions; `world` shows it already."""

    def on_controller(self, world: World, epoch: int) -> None:
        """A controller was elected."""

    def on_event(self, world: World, event: Event) -> None:
        """The cluster has written down something to be remembered."""

    def at_end(self, world: World) -> None:
        """All is healed and quiet: compare everything with everything."""
