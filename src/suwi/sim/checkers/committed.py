"""What is committed, and what was lost of it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION, Event
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.checkers.facts import (
    Batch,
    Broken,
    Checker,
    LogId,
    Replica,
    StateChange,
    World,
    first_from,
)


class Lost(NamedTuple):
    """A committed range that was lost in an unclean election."""

    log: LogId
    first: int
    end: int


class Committed(Checker):
    """What is committed stays, has one value for ever, and is on enough replicas.

    A batch is committed once it is below the high watermark of a leader, whatever other replicas
    know: from then on readers may have it. It is recorded here, and everything is compared with it:
    other leaders, followers below their own high watermark, members of the ISR, elected leaders.
    """

    def __init__(self) -> None:
        self._batches: dict[LogId, list[Batch]] = {}
        self._compared: dict[tuple[NodeId, str, LogId, int], int] = {}
        """The offset up to which each incarnation of a replica was compared in an epoch."""
        self._unclean_epochs: dict[LogId, int] = {}
        """The epoch of each log's last unclean election."""
        self._forgotten: dict[tuple[NodeId, LogId], list[Batch]] = {}
        """What a replica had when its machine lost power, and has lost."""
        self.losses: list[Lost] = []
        self._lost: dict[LogId, set[Batch]] = {}

    def has_lost(self, log: LogId, batch: Batch) -> bool:
        """Whether this batch was committed and lost."""
        return batch in self._lost.get(log, ())

    def unclean_epoch(self, partition: str) -> int:
        """The epoch of the last unclean election of a partition of that name, or -1."""
        return max([-1, *(e for log, e in self._unclean_epochs.items() if str(log) == partition)])

    def end_of(self, log: LogId) -> int:
        batches = self._batches.get(log)
        return batches[-1].last + 1 if batches else 0

    # -- high watermarks -------------------------------------------------------------------------

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        key = (replica.node, replica.incarnation, replica.log, replica.leader_epoch)
        compared = self._compared.get(key, 0)
        if replica.watermark <= compared:
            return
        self._compared[key] = replica.watermark
        visible = replica.between(max(compared, replica.start), replica.watermark)
        unclean_epoch = self._unclean_epochs.get(replica.log)
        if unclean_epoch is not None and not (
            replica.leads and replica.leader_epoch >= unclean_epoch
        ):
            self._is_left_behind(replica, visible)
            return
        known = self.end_of(replica.log)
        for batch in visible:
            if batch.base < known:
                self._compare(replica, batch)
            elif replica.leads:
                self._commit(world, replica, batch)
            else:
                raise Broken(f"{replica}, a follower, counts {batch} as committed; no leader did")

    def _is_left_behind(self, replica: Replica, visible: list[Batch]) -> None:
        """An unclean election has chosen another replica. What this one commits before it notices
        is lost; what it shows until it truncates may be. At the end it is compared all the same."""
        if replica.leads:
            for batch in visible:
                if not self._is_committed(replica, batch):
                    self._lose(replica.log, [batch])

    def _compare(self, replica: Replica, batch: Batch) -> None:
        committed = self._batches[replica.log]
        number = first_from(committed, batch.base)
        if committed[number] != batch:
            raise Broken(f"{replica} shows {batch}; committed was {committed[number]}")

    def _commit(self, world: World, leader: Replica, batch: Batch) -> None:
        log = leader.log
        self._batches.setdefault(log, []).append(batch)
        state = world.states.get(log)
        if state is None:
            return  # Deleted; this leader does not know yet.
        holders = [r.node for r in world.replicas_of(log) if self._counts_as_holder(r, batch)]
        needed = min(world.rules_known_to(leader).min_insync_replicas, state.replication_factor)
        # What was lost may come back with a later unclean election: it was on enough replicas once.
        if len(holders) < needed and not self.has_lost(log, batch):
            raise Broken(f"{batch} of {log} is committed, but only {holders} have it, not {needed}")
        self._check_in_sync(world, log, state, batch)

    def _counts_as_holder(self, replica: Replica, batch: Batch) -> bool:
        """The leader cannot know yet of a power loss after the replica's fetch: it counts as if it
        had happened after the commit."""
        forgotten = self._forgotten.get((replica.node, replica.log), ())
        return replica.may_hold(batch) or (replica.was_unclean_shutdown and batch in forgotten)

    # -- the in-sync set -------------------------------------------------------------------------

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        for log, before, after in changes:
            if after is None:
                continue
            if before is not None and after.unclean_epoch != before.unclean_epoch:
                self._give_up(world, log, after.leader)
            batches = self._batches.get(log)
            if batches:
                self._check_in_sync(world, log, after, batches[-1])
                if before is None or after.leader_epoch != before.leader_epoch:
                    self._check_leader(world, log, after, batches[-1])

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        state = world.states.get(replica.log)
        batches = self._batches.get(replica.log)
        if state is None or not batches or not removed or replica.was_unclean_shutdown:
            return
        known = self.end_of(replica.log)
        gone = [
            batch for batch in removed if batch.base < known and self._is_committed(replica, batch)
        ]
        if gone and replica.node in state.isr:
            raise Broken(f"{replica}, which is in sync, truncates {gone[0]}, which is committed")

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        """A crash may have happened during a truncation, which then must be correct."""
        removed = [b for b in before if b.last >= replica.end]
        if safe_end is not None:
            self._forgotten[replica.node, replica.log] = removed
        self.on_truncated(world, replica, removed)

    def _is_committed(self, replica: Replica, batch: Batch) -> bool:
        committed = self._batches.get(replica.log, [])
        number = first_from(committed, batch.base)
        return number < len(committed) and committed[number] == batch

    def _check_in_sync(self, world: World, log: LogId, state: PartitionState, last: Batch) -> None:
        """Every live member has the last committed batch, and so (by `at_end`) all before it."""
        for node in state.isr:
            replica = world.replica(node, log)
            if replica is not None and (replica.was_unclean_shutdown or not replica.is_live):
                continue
            if replica is None or not (replica.may_hold(last) or last.last < replica.start):
                raise Broken(f"{log}: b{node} is in sync, but does not have {last}: {state}")

    @staticmethod
    def _check_leader(world: World, log: LogId, state: PartitionState, last: Batch) -> None:
        """Every leader has what is committed, even after an unclean shutdown."""
        replica = world.replica(state.leader, log)
        if replica is None or not replica.is_live or last.last < replica.start:
            return
        if world.incarnations.get(state.leader, replica.incarnation) != replica.incarnation:
            return  # Its earlier incarnation was elected; this one cannot lead in that epoch.
        if not replica.holds(last):
            raise Broken(f"{log}: b{state.leader} is elected without {last}: {state}")

    def _give_up(self, world: World, log: LogId, leader: NodeId) -> None:
        """An unclean election: what the new leader does not have is lost, and must be reported."""
        assert leader != NO_NODE
        self._unclean_epochs[log] = world.states[log].leader_epoch
        replica = world.replica(leader, log)
        batches = self._batches.get(log, [])
        # What is below its start was deleted: others may have it for a while after a crash.
        kept = [
            b
            for b in batches
            if replica is not None and (replica.holds(b) or b.last < replica.start)
        ]
        if len(kept) < len(batches):
            first = kept[-1].last + 1 if kept else 0
            self._lose(log, batches, first)
            self._batches[log] = kept
            self._compared = {k: v for k, v in self._compared.items() if k[2] != log}

    def _lose(self, log: LogId, batches: list[Batch], first: int | None = None) -> None:
        """All from `first` on, or all of these."""
        first = batches[0].base if first is None else first
        self.losses.append(Lost(log, first, batches[-1].last + 1))
        self._lost.setdefault(log, set()).update(b for b in batches if b.base >= first)

    # -- at the end ------------------------------------------------------------------------------

    def at_end(self, world: World) -> None:
        """Every replica has all that is committed, and all replicas are equal."""
        for log, state in world.states.items():
            replicas = [world.replica(node, log) for node in state.replicas]
            for batch in self._batches.get(log, []):
                for node, replica in zip(state.replicas, replicas, strict=True):
                    if replica is None:
                        raise Broken(f"{log}: b{node} has nothing, {batch} is committed")
                    if batch.last >= replica.start and not replica.holds(batch):
                        raise Broken(f"{replica} does not have {batch}, which is committed")
            self._check_same([replica for replica in replicas if replica is not None])

    @staticmethod
    def _check_same(replicas: list[Replica]) -> None:
        for one in replicas:
            for other in replicas:
                start = max(one.start, other.start)
                end = min(one.watermark, other.watermark)
                if one.between(start, end) != other.between(start, end):
                    raise Broken(f"{one} and {other} differ below {end}")


_Place = tuple[NodeId, str]
"""A broker, and the name of a partition."""


class Losses(Checker):
    """A loss is reported, and nothing is reported as lost that is not.

    Committed records are lost in unclean elections only. Each is an event. A replica that comes
    back with records that its leader lacks reports them: all committed ones, and beyond these only
    what it truncated and what is older than the election.
    """

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._elections: set[str] = set()
        self._given_up: dict[_Place, dict[int, set[int]]] = {}
        """What each replica has truncated: the epochs of each offset."""
        self._owed: dict[Replica, tuple[str, set[int]]] = {}
        """The offsets that a replica must report, and the incarnation that truncated them."""
        self._reported: dict[_Place, set[int]] = {}

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        place = (replica.node, str(replica.log))
        given_up = self._given_up.setdefault(place, {})
        incarnation, owed = self._owed.get(replica, (replica.incarnation, set()))
        if incarnation != replica.incarnation:
            owed = set()  # A killed process reports nothing.
        for batch in removed:
            # What is below the start of the log was deleted.
            start = max(replica.start_before, replica.start)
            offsets = range(max(batch.base, start), batch.last + 1)
            for offset in offsets:
                given_up.setdefault(offset, set()).add(batch.epoch)
            if self._committed.has_lost(replica.log, batch):
                owed.update(offsets)
        self._owed[replica] = (replica.incarnation, owed)

    def on_event(self, world: World, event: Event) -> None:
        partition = str(event.facts.get("partition"))
        if event.kind == UNCLEAN_ELECTION:
            self._elections.add(partition)
        elif event.kind == RECORDS_LOST:
            if not any(str(log) == partition for _, log in world.replicas):
                return  # A compacted log is not inspected: what it truncates is not known.
            for lost in event.facts["ranges"]:
                self._check_lost(world, partition, event.facts, lost)

    def _check_lost(self, world: World, partition: str, facts: Any, lost: dict[str, int]) -> None:
        place = (NodeId(facts["broker"]), partition)
        is_hidden = any(
            each.is_offline
            for each in world.replicas.values()
            if (each.node, str(each.log)) == place
        )
        given_up = self._given_up.get(place, {})
        losses = [loss for loss in self._committed.losses if str(loss.log) == partition]
        for offset in range(lost["first"], lost["end"]):
            what = f"{partition}: offset {offset} of epoch {lost['epoch']} is reported as lost"
            is_lost = any(loss.first <= offset < loss.end for loss in losses)
            if offset < facts["committed_below"] and not is_lost:
                raise Broken(f"{what}, but it is not")
            if lost["epoch"] not in given_up.get(offset, ()) and not is_hidden:
                raise Broken(f"{what} by b{facts['broker']}, which did not truncate it")
            if lost["epoch"] >= self._committed.unclean_epoch(partition):
                raise Broken(f"{what}, but was not written before an unclean election")
        self._reported.setdefault(place, set()).update(range(lost["first"], lost["end"]))

    def at_end(self, world: World) -> None:
        for loss in self._committed.losses:
            if str(loss.log) not in self._elections:
                raise Broken(f"{loss.log} lost {loss.first} to {loss.end}, and it was not reported")
        for replica, (incarnation, owed) in self._owed.items():
            told = self._reported.get((replica.node, str(replica.log)), set())
            if replica.incarnation == incarnation and replica.is_live and not owed <= told:
                raise Broken(f"{replica} truncated {sorted(owed - told)}, and did not report it")
