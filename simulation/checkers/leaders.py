"""At most one leader in each epoch, and only it appends in that epoch.

Each incarnation of a broker counts separately: after a restart it may not know what it did.
"""

from simulation.checkers.facts import Batch, Broken, Checker, LogId, Replica, World
from suwi.model.ids import NodeId


class Leaders(Checker):
    def __init__(self) -> None:
        self._leaders: dict[tuple[LogId, int], tuple[NodeId, str]] = {}
        self._written: dict[LogId, dict[tuple[int, int], Batch]] = {}
        """What leaders wrote, by epoch and offset."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        if replica.leads:
            self._check_alone(replica)
        for batch in appended:
            if replica.leads:
                self._wrote(replica, batch)
            else:
                self._copied(replica, batch)

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        # A process may be killed after a batch was written and before anybody could see it.
        written = self._written.setdefault(replica.log, {})
        for batch in replica.batches[len(before) :]:
            written.setdefault((batch.epoch, batch.base), batch)

    def _check_alone(self, replica: Replica) -> None:
        epoch = (replica.log, replica.leader_epoch)
        me = (replica.node, replica.incarnation)
        first = self._leaders.setdefault(epoch, me)
        if first != me:
            raise Broken(
                f"{replica.log} has two leaders in epoch {replica.leader_epoch}: "
                f"{first[1]} and {me[1]}"
            )

    def _wrote(self, replica: Replica, batch: Batch) -> None:
        written = self._written.setdefault(replica.log, {})
        if batch.epoch != replica.leader_epoch:
            # What it fetched before its election may only become visible now.
            self._copied(replica, batch)
            return
        known = written.setdefault((batch.epoch, batch.base), batch)
        if known != batch:
            raise Broken(f"{replica} writes {batch} where {known} was written in that epoch")

    def _copied(self, replica: Replica, batch: Batch) -> None:
        if batch.epoch > replica.leader_epoch >= 0:
            raise Broken(f"{replica}, in epoch {replica.leader_epoch}, appends {batch}")
        written = self._written.get(replica.log, {}).get((batch.epoch, batch.base))
        if written != batch:
            raise Broken(f"{replica} appends {batch}, but the leader of that epoch wrote {written}")
