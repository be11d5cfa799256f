"""The state of a simulated cluster at one moment, as seen from outside.

`World` has the replicas as in memory and on disk, and the partitions' states as in the
store. `suwi.sim.invariant_monitor` updates it and calls each checker with what
has changed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from suwi.metadata.cluster_events import Event
from suwi.metadata.image import PartitionState
from suwi.model.ids import NodeId, TopicPartition


class Broken(AssertionError):
    """An invariant does not hold."""


class LogId(NamedTuple):
    """One partition of one topic id. Its name is for error messages."""

    topic_id: UUID
    name: TopicPartition

    def __str__(self) -> str:
        return str(self.name)


class Batch(NamedTuple):
    """A batch in a log. Two that are equal have the same records."""

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
    incarnation: str = ""
    """The incarnation of the process that has it open."""
    is_live: bool = True
    is_offline: bool = False
    """Its disk failed, perhaps in the middle of a change: nobody can read its content."""
    offline_end: int = 0
    """Where its log ended then, with what it appended in the step in which the disk failed."""
    was_unclean_shutdown: bool = False
    """It lost power, and may still miss records."""
    leads: bool = False
    leader_epoch: int = -1
    image_sequence: int = -1
    """The newest change of the metadata that its broker has applied."""
    start: int = 0
    start_before: int = 0
    """Its start offset before the last step, which may have moved it either way."""
    stable: int = 0
    watermark: int = 0
    end: int = 0
    batches: list[Batch] = field(default_factory=list)
    """All batches of its log, in order."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Its leader epochs and their start offsets."""

    def __str__(self) -> str:
        return f"{self.log} on b{self.node}"

    def holds(self, batch: Batch) -> bool:
        return self.batch_at(batch.base) == batch

    def may_hold(self, batch: Batch) -> bool:
        """Also if nobody saw it: it may have told its leader that it has the batch."""
        return self.holds(batch) or (self.is_offline and batch.last < self.offline_end)

    def batch_at(self, offset: int) -> Batch | None:
        """The batch with an offset."""
        number = first_from(self.batches, offset)
        if number < len(self.batches) and self.batches[number].base <= offset:
            return self.batches[number]
        return None

    def between(self, first: int, end: int) -> list[Batch]:
        """The batches that start from `first` on and below `end`."""
        begun, ended = first_from(self.batches, first), first_from(self.batches, end)
        near = self.batches[begun : ended + 1]
        return [batch for batch in near if first <= batch.base < end]


def first_from(batches: list[Batch], offset: int) -> int:
    """The number of the first batch that ends at or after an offset."""
    return bisect_left(batches, offset, key=attrgetter("last"))


class StateChange(NamedTuple):
    """One write to the store changed one partition; None: it did not exist, or no longer exists."""

    log: LogId
    before: PartitionState | None
    after: PartitionState | None


class Rules(NamedTuple):
    """The guarantees of a topic's configuration."""

    min_insync_replicas: int = 1
    unclean_election: bool = False


@dataclass(slots=True)
class World:
    replicas: dict[tuple[NodeId, LogId], Replica] = field(default_factory=dict)
    states: dict[LogId, PartitionState] = field(default_factory=dict)
    rules: dict[UUID, list[tuple[int, Rules]]] = field(default_factory=dict)
    """Of each topic: since which change of the metadata, and what, in order."""
    incarnations: dict[NodeId, str] = field(default_factory=dict)
    """The registered incarnation of each broker: it may have ended since, and one that has just
    started is not there yet."""
    controller: tuple[NodeId, int] | None = None
    """The active controller and its epoch."""
    now_s: float = 0.0

    def replicas_of(self, log: LogId) -> Iterator[Replica]:
        return (replica for replica in self.replicas.values() if replica.log == log)

    def replica(self, node: NodeId, log: LogId) -> Replica | None:
        return self.replicas.get((node, log))

    def rules_of(self, log: LogId) -> Rules:
        """Those in force now."""
        return self.rules[log.topic_id][-1][1] if log.topic_id in self.rules else Rules()

    def rules_known_to(self, replica: Replica) -> Rules:
        """Those of the newest metadata that its broker has applied."""
        known = [
            rules
            for sequence, rules in self.rules.get(replica.log.topic_id, ())
            if sequence <= replica.image_sequence
        ]
        return known[-1] if known else self.rules_of(replica.log)

    def clear_unclean_shutdown(self, change: StateChange) -> None:
        """A replica that joins the ISR again has everything. Not if its registered incarnation has
        just ended in a power loss: the leader could not know."""
        if change.before is None or change.after is None:
            return
        for node in set(change.after.isr) - set(change.before.isr):
            replica = self.replica(node, change.log)
            if replica is None:
                continue
            is_last_seen = self.incarnations.get(node, replica.incarnation) == replica.incarnation
            if replica.is_live == is_last_seen:
                replica.was_unclean_shutdown = False


class Checker:
    """Called with everything that changes; each checker implements what it needs."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        """A replica changed; `appended` are the new batches of its log."""

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        """A log was truncated, before anything was appended again."""

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        """A new incarnation opened a log; `before` is its former content. `safe_end`: after a power
        loss the offset up to which it was synced; 0 after a crash during a write; else None."""

    def on_deleted(self, world: World, replica: Replica) -> None:
        """A broker deletes a log: the topic is gone, or the replica was moved away."""

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        """A write to the store changed partitions; `world` has the new state."""

    def on_rules(self, world: World, before: Rules, after: Rules) -> None:
        """The configuration of a topic changed."""

    def on_controller(self, world: World, epoch: int) -> None:
        """A controller was elected."""

    def on_event(self, world: World, event: Event) -> None:
        """The cluster has recorded an event."""

    def at_end(self, world: World) -> None:
        """At the end, after healing: compare everything with everything."""
