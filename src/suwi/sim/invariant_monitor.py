"""Inspects a simulated cluster after every step and passes what has changed to the checkers.

A step belongs to one process, so only the broker whose callback just ran is inspected, and of it
only the replicas whose offsets have changed. Logs are read from the simulated disks, not through
the code under test. Compacted logs are not inspected: `tests/log/test_compaction_model.py` is for
those.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import basename

from suwi.log.partition_log import PartitionLog
from suwi.metadata.cluster_events import events
from suwi.metadata.image import ClusterImage, ImageBuilder, PartitionState, Topic, partitions_of
from suwi.metadata.ledger import Changed, Elected, Event, Registered
from suwi.metadata.memory import MemoryView
from suwi.model.ids import NodeId, Offset, TopicId
from suwi.model.topic_config import parse_topic_config
from suwi.records.batch import HEADER, LOG_OVERHEAD_BYTES
from suwi.replica.partition import Partition
from suwi.sim.checkers.facts import (
    Batch,
    Broken,
    Checker,
    LogId,
    Replica,
    Rules,
    StateChange,
    World,
)
from suwi.sim.cluster import SimCluster, SimNode


@dataclass(slots=True, eq=False)
class _Seen:
    """How far a replica's log has been read."""

    replica: Replica
    marks: tuple[object, ...] = ()
    log: PartitionLog | None = None
    generation: int = -1
    segment_base: int = -1
    position: int = 0
    safe_end: int = 0
    lost_power: bool = False
    died_in_a_write: bool = False
    appended: list[Batch] = field(default_factory=list)


class InvariantMonitor:
    def __init__(self, cluster: SimCluster, checkers: Sequence[Checker]) -> None:
        self.world = World()
        self.checkers = list(checkers)
        self.truth = ClusterImage()
        """The image of a broker that has every change at once."""
        self._cluster = cluster
        self._builder = ImageBuilder()
        self._defaults = cluster.config_of(NodeId(1)).topic
        self._nodes = {node.name: node for node in cluster.nodes.values()}
        self._seen: dict[tuple[NodeId, LogId], _Seen] = {}
        self._seen_as: dict[Partition, _Seen] = {}
        """By the object of the broker's current incarnation."""
        self._lives: dict[int, str] = {}
        """The incarnations of brokers, by the epochs of their registrations."""
        self._broken: Broken | None = None
        self._crashes: dict[NodeId, int] = {}
        self._disk_errors: dict[NodeId, int] = {}
        self._loop = cluster.simulation.loop
        cluster.store.observers.append(self._on_store)
        cluster.on_start.append(self._on_start)
        cluster.on_end.append(self._on_end)
        cluster.simulation.add_checker(self._after_step)

    def at_end(self) -> None:
        """At the end, after healing: inspect everything, and let the checkers compare all of it."""
        for node in self._nodes.values():
            if node.is_running:
                self._look_at(node, even_if_same=True)
        for checker in self.checkers:
            checker.at_end(self.world)

    # -- the store -------------------------------------------------------------------------------

    def _on_store(self, author: MemoryView | None, events: tuple[Event, ...]) -> None:
        try:
            self._follow_store(author, events)
        except Broken as error:
            # Not to be raised here, inside the code under test, which might handle it.
            self._broken = self._broken or error

    def _follow_store(self, author: MemoryView | None, events: tuple[Event, ...]) -> None:
        world, ledger = self.world, self._cluster.store.ledger
        world.now_s = self._loop.time()
        controller = ledger.controller
        world.controller = (controller.node_id, controller.epoch) if controller else None
        for event in events:
            if isinstance(event, Elected):
                self._cluster.say(f"b{event.controller.node_id} is the controller")
                for checker in self.checkers:
                    checker.on_controller(world, event.controller.epoch)
            elif isinstance(event, Registered) and author in self._cluster.views:
                node = self._cluster.nodes[self._cluster.views[author]]
                self._lives[event.registration.epoch] = node.machine.incarnation.name
            elif isinstance(event, Changed):
                before = self.truth
                self.truth = self._builder.apply(event.change.sequence, event.change.values)
                self._on_image(before, self._cluster.views.get(author) if author else None)

    def _on_image(self, before: ClusterImage, author: NodeId | None) -> None:
        after = self.truth
        self.world.incarnations = {
            node: self._lives[broker.epoch] for node, broker in after.registered_brokers.items()
        }
        changes: list[StateChange] = []
        for name in sorted({*before.topics, *after.topics}):
            old, new = before.topics.get(name), after.topics.get(name)
            if old is new:
                continue
            changes += _differences(old, new)
            if new is not None:
                config = parse_topic_config(new.configs, self._defaults)
                self._set_rules(
                    new.id,
                    Rules(config.min_insync_replicas, config.unclean_leader_election_enable),
                )
        for change in changes:
            self._cluster.say(f"  {change.log} {_state_text(change.after)}")
            if change.after is None:
                self.world.states.pop(change.log, None)
            else:
                self.world.states[change.log] = change.after
                self.world.clear_unclean_shutdown(change)
        if changes:
            for checker in self.checkers:
                checker.on_states(self.world, changes, author)
        if after.events is not before.events:
            self._on_events(before, after)

    def _set_rules(self, topic_id: TopicId, rules: Rules) -> None:
        """A leader that does not have this change yet goes on with the rules before."""
        known = self.world.rules.setdefault(topic_id, [])
        before = known[-1][1] if known else rules
        if not known or before != rules:
            known.append((self.truth.sequence, rules))
        if before != rules:
            self._cluster.say(f"  {rules}")
            for checker in self.checkers:
                checker.on_rules(self.world, before, rules)

    def _on_events(self, before: ClusterImage, after: ClusterImage) -> None:
        known = events(before)
        for event in events(after):
            if event not in known:
                self._cluster.say(f"  {event.kind}: {dict(event.facts)}")
                for checker in self.checkers:
                    checker.on_event(self.world, event)

    # -- processes -------------------------------------------------------------------------------

    def _on_start(self, node: SimNode) -> None:
        assert node.broker is not None
        replicas = node.broker.replicas
        delete_later = replicas._on_marked_for_deletion

        def marked_for_deletion(path: str) -> None:
            self._forget(node, path)
            delete_later(path)

        replicas._on_marked_for_deletion = marked_for_deletion
        self._crashes[node.id] = node.machine.disk.faults.crashes
        self._disk_errors[node.id] = node.machine.disk.faults.errors
        for (node_id, _), seen in self._seen.items():
            if node_id == node.id:
                seen.log = None
                seen.replica.leads = False

    def _on_end(self, node: SimNode, lost_power: bool) -> None:
        for (node_id, _), seen in self._seen.items():
            if node_id == node.id:
                seen.replica.is_live = seen.replica.leads = False
                seen.died_in_a_write |= node.machine.disk.faults.crashes > self._crashes[node.id]
                if lost_power:
                    seen.lost_power = seen.replica.was_unclean_shutdown = True

    # -- steps -----------------------------------------------------------------------------------

    def _after_step(self) -> None:
        if self._broken is not None:
            raise self._broken
        ran = self._loop.ran
        if ran is not None and not ran.revoked:
            node = self._nodes.get(ran.host)
            if node is not None:
                self._look_at(node)

    def _forget(self, node: SimNode, path: str) -> None:
        """A replica is deleted, perhaps moved away: if it comes back it has a new log."""
        name = basename(path).rpartition(".")[0]
        for key in [(n, log) for n, log in self._seen if n == node.id and str(log) == name]:
            seen = self._seen.pop(key)
            self.world.replicas.pop(key, None)
            self._seen_as = {p: each for p, each in self._seen_as.items() if each is not seen}
            self._cluster.say(f"  {seen.replica} deleted")
            try:
                for checker in self.checkers:
                    checker.on_deleted(self.world, seen.replica)
            except Broken as error:  # As in `_on_store`.
                self._broken = self._broken or error

    def _look_at(self, node: SimNode, *, even_if_same: bool = False) -> None:
        assert node.broker is not None
        for partition in node.broker.replicas:
            # Not through the property, which would open the log.
            replica_log = partition.replica_log
            log = replica_log.log
            if log is None or replica_log.config.is_compacted:
                continue  # Compaction changes batches, which no checker expects.
            marks = (
                replica_log.leader_epoch,
                partition.is_leader,
                replica_log.high_watermark,
                log.end_offset,
                log.start_offset,
                log.generation,
            )
            seen = self._seen_as.get(partition)
            if seen is None:
                seen = self._seen_as[partition] = self._meet(node, partition)
            if log.state.offline_because is not None:
                self._look_at_reason(node, log.state.offline_because)
                # Perhaps in the middle of a change. The content counts when it is opened again.
                seen.replica.leads = partition.is_leader
                if not seen.replica.is_offline:
                    seen.replica.is_offline, seen.replica.offline_end = True, log.end_offset
                seen.died_in_a_write = True
                continue
            if seen.marks != marks or seen.log is not log or even_if_same:
                seen.marks = marks
                self._update(node, seen, partition, log)

    def _look_at_reason(self, node: SimNode, reason: Exception) -> None:
        """A directory goes offline only for an error of its disk, and never for a missing file."""
        has_failed = node.machine.disk.faults.errors > self._disk_errors[node.id]
        if not has_failed or isinstance(reason, FileNotFoundError):
            raise Broken(f"{node.name} took a disk offline that has not failed: {reason!r}")

    def _meet(self, node: SimNode, partition: Partition) -> _Seen:
        key = (node.id, LogId(partition.topic_id, partition.partition))
        seen = self._seen.get(key)
        if seen is None:
            replica = self.world.replicas[key] = Replica(*key)
            self._seen[key] = seen = _Seen(replica)
        return seen

    def _update(self, node: SimNode, seen: _Seen, partition: Partition, log: PartitionLog) -> None:
        world, replica = self.world, seen.replica
        world.now_s = self._loop.time()
        removed: list[Batch] = []
        first = log.segments()[0].base_offset
        if replica.batches and replica.batches[0].base < first:  # Segments are deleted.
            replica.batches = [batch for batch in replica.batches if batch.base >= first]
        before = replica.batches
        is_new_incarnation = seen.log is not log and replica.incarnation not in (
            "",
            node.machine.incarnation.name,
        )
        if seen.log is not log or seen.generation != log.generation:
            seen.log, seen.generation = log, log.generation
            seen.segment_base, seen.position = -1, 0
            after = self._read_on(node, seen, log)
            common = _common(before, after)
            replica.batches, removed, seen.appended = after, before[common:], after[common:]
        else:
            seen.appended = self._read_on(node, seen, log)
            replica.batches += seen.appended
        replica.incarnation = node.machine.incarnation.name
        replica.is_live, replica.is_offline = True, False
        replica.leads = partition.is_leader
        replica.leader_epoch = partition.leader_epoch
        assert node.broker is not None
        replica.image_sequence = node.broker.replicas.image.sequence
        replica.start_before = replica.start
        replica.start, replica.end = log.start_offset, log.end_offset
        replica.watermark = partition.watermark_as_it_is
        watermark = Offset(replica.watermark)
        replica.stable = log.producers.last_stable_offset(log.start_offset, watermark)
        replica.epochs = [(int(epoch), int(start)) for epoch, start in log.epochs.entries()]
        self._tell(seen, before, removed, is_new_incarnation=is_new_incarnation)
        seen.safe_end = log.recovery_point

    def _tell(
        self, seen: _Seen, before: list[Batch], removed: list[Batch], *, is_new_incarnation: bool
    ) -> None:
        world, replica = self.world, seen.replica
        if is_new_incarnation:
            safe_end = seen.safe_end if seen.lost_power else None
            if seen.died_in_a_write:
                safe_end = 0  # It may have been truncating.
            self._cluster.say(f"  {replica} opened again, ends at {replica.end}")
            for checker in self.checkers:
                checker.on_reopened(world, replica, before, safe_end)
            seen.lost_power = seen.died_in_a_write = False
        elif removed:
            self._cluster.say(f"  {replica} truncated to {replica.end}: {removed[0]}…")
            for checker in self.checkers:
                checker.on_truncated(world, replica, removed)
        for checker in self.checkers:
            checker.on_replica(world, replica, seen.appended)

    def _read_on(self, node: SimNode, seen: _Seen, log: PartitionLog) -> list[Batch]:
        """The batches after those that were read last."""
        found: list[Batch] = []
        for segment in log.segments():
            if segment.base_offset < seen.segment_base:
                continue
            if segment.base_offset > seen.segment_base:
                seen.segment_base, seen.position = segment.base_offset, 0
            content = node.machine.disk.peek(segment.log_path)
            while seen.position < segment.size_bytes:
                batch, size_bytes = _read_batch(content, seen.position, segment.log_path)
                found.append(batch)
                seen.position += size_bytes
        return found


def _read_batch(content: bytearray, position: int, path: str) -> tuple[Batch, int]:
    if position + HEADER.size > len(content):
        raise Broken(f"{path} ends within a batch at {position}")
    fields = HEADER.unpack_from(content, position)
    base, length, epoch, _, crc, _, delta, _, _, producer_id, producer_epoch, sequence, _ = fields
    batch = Batch(base, base + delta, epoch, crc, producer_id, producer_epoch, sequence)
    return batch, length + LOG_OVERHEAD_BYTES


def _state_text(state: PartitionState | None) -> str:
    if state is None:
        return "is gone"
    text = f"leader b{state.leader} epoch {state.leader_epoch} in sync {list(state.isr)}"
    if state.is_reassigning:
        text += f" of {list(state.replicas)}, adding {list(state.adding_replicas)}"
        text += f" removing {list(state.removing_replicas)}"
    if state.elr or state.unclean_shutdown_replicas or state.is_recovering:
        text += f" elr {list(state.elr)} unclean {list(state.unclean_shutdown_replicas)}"
        text += " recovering" * state.is_recovering
    return text


def _common(one: list[Batch], other: list[Batch]) -> int:
    """How many batches at the start are equal."""
    number = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        number += 1
    return number


def _differences(old: Topic | None, new: Topic | None) -> list[StateChange]:
    before, after = _states(old), _states(new)
    return [
        StateChange(log, before.get(log), after.get(log))
        for log in {**before, **after}
        if before.get(log) != after.get(log)
    ]


def _states(topic: Topic | None) -> dict[LogId, PartitionState]:
    if topic is None:
        return {}
    return {LogId(topic.id, tp): state for tp, state in partitions_of(topic)}
