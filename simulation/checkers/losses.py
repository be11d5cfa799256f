"""A loss is reported, and nothing is reported as lost that is not.

Committed records are lost in unclean elections only. Each is an event. A replica that comes back
with records that its leader lacks reports them: all committed ones, and beyond these only what it
truncated and what is older than the election.
"""

from typing import Any

from simulation.checkers.committed import Committed
from simulation.checkers.facts import Batch, Broken, Checker, Replica, World
from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION, Event
from suwi.model.ids import NodeId

_Place = tuple[NodeId, str]
"""A broker, and the name of a partition."""


class Losses(Checker):
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
