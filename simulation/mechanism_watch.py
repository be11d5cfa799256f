"""Notices which mechanisms are active in a run, and when: from the brokers, not from the plan.

A state (a pause, a reassignment) is looked at every tenth of a second. An event (a truncation, a
refused write) counts for two seconds, the session timeout: what follows from it is under way.
Invariant: nothing that the watch does changes the run; its trace hash is the same without it.
"""

import errno
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import Any
from unittest.mock import patch

from simulation.mechanism_clients import EXPIRING_GROUP
from simulation.mechanisms import MECHANISMS
from simulation.pipelined import PipelinedWriter
from suwi.broker.broker import Broker
from suwi.coordinator.shard import Shard
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.log.directory_state import DirectoryState
from suwi.log.log_segments import LogSegments
from suwi.log.partition_log import PartitionLog
from suwi.log.producer_state import ProducerStates
from suwi.log.segment_check import SegmentCheck
from suwi.metadata.image import ClusterImage
from suwi.model.errors import KafkaStorageError, NotEnoughReplicas
from suwi.model.ids import NO_NODE, NodeId
from suwi.net.connection import Connection
from suwi.net.dispatch import Request
from suwi.replica.partition import Partition
from suwi.replica.replication_quota import ReplicationQuota
from suwi.sim.checkers.facts import Batch, Checker, Replica, Rules, StateChange, World
from suwi.sim.cluster import SimCluster, SimNode
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard

_EVENT_S = 2.0
_LOOK_S = 0.1
_SESSIONS = ("session", "consumer-session")

Pair = tuple[str, str]


class Activity:
    """The intervals of virtual time in which each mechanism was active, in order."""

    def __init__(self) -> None:
        self._intervals: dict[str, list[tuple[float, float]]] = {
            mechanism.name: [] for mechanism in MECHANISMS
        }

    def note(self, name: str, start_s: float, end_s: float) -> None:
        """Intervals of one mechanism come in the order of their starts."""
        intervals = self._intervals[name]
        if intervals and start_s <= intervals[-1][1]:
            start_s, before_s = intervals.pop()
            end_s = max(end_s, before_s)
        intervals.append((start_s, end_s))

    def pairs(self) -> list[Pair]:
        """Those that were active at the same time, in the order of the table."""
        active = [name for name, intervals in self._intervals.items() if intervals]
        return [
            (one, other)
            for one, other in combinations(active, 2)
            if _overlap(self._intervals[one], self._intervals[other])
        ]


def _overlap(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> bool:
    i = j = 0
    while i < len(one) and j < len(other):
        if max(one[i][0], other[j][0]) <= min(one[i][1], other[j][1]):
            return True
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return False


class MechanismWatch(Checker):
    """A checker that never complains."""

    def __init__(self, cluster: SimCluster) -> None:
        self.activity = Activity()
        self._cluster = cluster
        self._loop = cluster.simulation.loop
        self._next_look_s = 0.0
        self._controllers = 0
        self._errors: dict[NodeId, int] = {}
        """How many calls of each broker's disk had failed when it was last looked at."""
        self._world: World | None = None
        self._offsets: dict[Shard[Any], int] = {}
        """How many offsets of the group whose offsets expire each coordinator had."""
        cluster.on_end.append(self._on_end)
        cluster.simulation.add_checker(self._after_step)

    def happened(self, name: str, lasts_s: float = _EVENT_S) -> None:
        now_s = self._loop.time()
        self.activity.note(name, now_s, now_s + lasts_s)

    # -- what the monitor tells ------------------------------------------------------------------

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        self.happened("truncation")

    def on_controller(self, world: World, epoch: int) -> None:
        self._controllers += 1
        if self._controllers > 1:
            self.happened("controller change")

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        self._world = world
        for log, before, after in changes:
            if after is None:
                self.happened("topic deletion")
            elif before is None:
                grown = log.name.partition and all(
                    other.name.partition != 0 or other.topic_id != log.topic_id
                    for other, was, _ in changes
                    if was is None
                )
                self.happened("partition growth" if grown else "topic creation")
            else:
                is_moved = after.leader not in (before.leader, NO_NODE)
                if is_moved and after.leader == after.replicas[0] and before.leader in after.isr:
                    self.happened("leader rebalance")

    def on_rules(self, world: World, before: Rules, after: Rules) -> None:
        if before.min_insync_replicas != after.min_insync_replicas:
            self.happened("min.insync change")

    def _on_end(self, node: SimNode, lost_power: bool) -> None:
        if lost_power:
            self.happened("power loss")
        elif node.broker is not None and node.broker._stopping is None:
            self.happened("process kill")

    # -- what is looked at -----------------------------------------------------------------------

    def _after_step(self) -> None:
        now_s = self._loop.time()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            for name in self._active():
                self.activity.note(name, now_s, now_s + _LOOK_S)

    def _active(self) -> Iterator[str]:
        for state in self._world.states.values() if self._world is not None else ():
            if state.leader_epoch == state.unclean_epoch and set(state.isr) != set(state.replicas):
                self.happened("unclean election")
                break
        network = self._cluster.simulation.network
        if network._cuts or network._refusals:
            yield "network cut"
        for node in self._cluster.nodes.values():
            disk = node.machine.disk
            if disk.faults.errors > self._errors.get(node.id, 0) and not disk.is_filled:
                self.happened("failing disk")
            self._errors[node.id] = disk.faults.errors
            if node.is_frozen:
                yield "pause"
            elif node.is_running and node.broker is not None:
                if node.view is not None and not node.view.connected:
                    yield "store loss"
                yield from self._of_broker(node.broker)

    def _of_broker(self, broker: Any) -> Iterator[str]:
        for partition in broker.replicas:
            if partition.is_leader and partition.config.flush_messages == 1:
                yield "flush each message"
            if partition.is_open and partition.log_as_it_is.damages:
                yield "damaged segment"
        for topic in broker.replicas.image.topics.values():
            if any(state.is_reassigning for state in topic.partitions):
                yield "reassignment"
                break
        if broker.transactions.open_transactions:
            yield "open transaction"
        if broker.replicas.watches._watched:
            yield "watched partition"
        for shard in broker.groups.runtime.active():
            if shard._timers.is_paused:
                yield "paused coordinator"
            groups = shard.machine.groups
            offsets = groups.offsets._by_group.get(EXPIRING_GROUP)
            left = len(list(offsets.latest())) if offsets is not None else 0
            if left < self._offsets.get(shard, 0):
                self.happened("offsets expiry")
            self._offsets[shard] = left
            yield from _of_groups(groups)

    # -- what brokers call -----------------------------------------------------------------------

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """While it is entered, calls of these methods are noticed."""
        with ExitStack() as stack:
            for owner, name, tap in _TAPS:
                original = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, tap(original, self.happened)))
            stall = self._loop.stall
            self._loop.stall = self._stalling(stall)  # type: ignore[method-assign]
            stack.callback(setattr, self._loop, "stall", stall)
            yield

    def _stalling(self, stall: Callable[..., None]) -> Callable[..., None]:
        def stalls(incarnation: Any, duration_s: float) -> None:
            self.happened("slow disk", max(duration_s, _LOOK_S))
            stall(incarnation, duration_s)

        return stalls


def _of_groups(groups: Any) -> Iterator[str]:
    for classic in groups.classic.values():
        if classic.members:
            yield "classic members"
        if classic.static:
            yield "static members"
    for consumer in groups.consumer:
        if consumer.static:
            yield "static members"
        if len(consumer.members) > consumer.classic_members:
            yield "848 members"
            if consumer.classic_members:
                yield "both protocols in a group"


_Original = Callable[..., Any]
_Happened = Callable[[str], None]


def _after(name: str) -> Callable[[_Original, _Happened], _Original]:
    def tap(original: _Original, happened: _Happened) -> _Original:
        def tapped(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            happened(name)
            return result

        return tapped

    return tap


def _on_error(name: str, kind: type[Exception]) -> Callable[[_Original, _Happened], _Original]:
    def tap(original: _Original, happened: _Happened) -> _Original:
        def tapped(*given: Any, **named: Any) -> Any:
            try:
                return original(*given, **named)
            except kind:
                happened(name)
                raise

        return tapped

    return tap


def _if_changed(
    name: str, measure: Callable[..., object]
) -> Callable[[_Original, _Happened], _Original]:
    """Whether the call, or the last slice of it, changed what `measure` gives for its arguments."""

    def tap(original: _Original, happened: _Happened) -> _Original:
        def tapped(*given: Any, **named: Any) -> Any:
            before = measure(*given)

            def compare() -> None:
                if measure(*given) != before:
                    happened(name)

            def go_through(slices: Generator[None, None, Any]) -> Generator[None, None, Any]:
                result = yield from slices
                compare()
                return result

            result = original(*given, **named)
            if isinstance(result, Generator):
                return go_through(result)
            compare()
            return result

        return tapped

    return tap


def _reads(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: Partition, *given: Any, **named: Any) -> Any:
        if not self.is_leader:
            happened("follower read")
        return original(self, *given, **named)

    return tapped


def _waits(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: ReplicationQuota) -> float:
        wait_s: float = original(self)
        if wait_s > 0:
            happened("replication throttle")
        return wait_s

    return tapped


def _rules_change(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: Broker, old: ClusterImage, new: ClusterImage) -> Any:
        if new.acls is not old.acls and (old.acls or new.acls):
            happened("access rules change")
        return original(self, old, new)

    return tapped


def _refuses(original: _Original, happened: _Happened) -> _Original:
    def tapped(*given: Any) -> bool:
        is_refused: bool = original(*given)
        if is_refused:
            happened("access rules change")
        return is_refused

    return tapped


def _removes(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: PartitionLog, count: int) -> Any:
        if count:
            happened("segment deletion")
            kept = self.segments()[count:]
            if kept and self.start_offset < kept[0].base_offset:
                happened("retention")
        return original(self, count)

    return tapped


def _fails(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: DirectoryState, error: Exception) -> Any:
        if getattr(error, "errno", None) == errno.ENOSPC:
            happened("full disk")
        return original(self, error)

    return tapped


def _session_ends(original: _Original, happened: _Happened) -> _Original:
    def tapped(self: GroupCoordinatorShard, key: Any, *given: Any) -> Any:
        if key[0] in _SESSIONS:
            happened("member expiry")
        return original(self, key, *given)

    return tapped


_TAPS: tuple[tuple[Any, str, Callable[[_Original, _Happened], _Original]], ...] = (
    (Broker, "_begin_stop", _after("controlled shutdown")),
    (Broker, "_apply_limits", _rules_change),
    (Request, "refuses", _refuses),
    (Connection, "mute", _after("throttled client")),
    (Partition, "delete_before", _after("DeleteRecords")),
    (Partition, "check_enough_replicas", _on_error("refused: too few in sync", NotEnoughReplicas)),
    (Partition, "append", _on_error("refused: storage", KafkaStorageError)),
    (Partition, "read", _reads),
    (ReplicationQuota, "wait_s", _waits),
    (DirectoryState, "failed", _fails),
    (PartitionLog, "remove_oldest", _removes),
    (PartitionLog, "replace", _after("compaction")),
    (PartitionLog, "roll", _if_changed("log roll", lambda log, *_: len(log.segments()))),
    (SegmentCheck, "_check_some", _after("scrubbing")),
    (LogSegments, "add_damage", _after("damaged segment")),
    (ProducerStates, "expire", _if_changed("producer id expiry", lambda all_, *_: len(all_.all()))),
    (
        TransactionCoordinatorShard,
        "_abort_timed_out",
        _if_changed("transaction time-out", lambda *given: len(given[-1].records)),
    ),
    (GroupCoordinatorShard, "expired", _session_ends),
    (PipelinedWriter, "_send", _after("pipelined writer")),
)
