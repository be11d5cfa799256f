"""A loss is reported, and nothing is reported as lost that is not.

Committed records are lost by unclean elections only. Each is an event; a replica that comes back
with what its leader lacks reports exactly that.
"""

from suwi.controller.events import RECORDS_LOST, UNCLEAN_ELECTION, Event
from suwi.sim.checkers.committed import Committed
from suwi.sim.checkers.facts import Broken, Checker, World


class Losses(Checker):
    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._elections: set[str] = set()
        self.reported: dict[str, list[tuple[int, int]]] = {}
        """The ranges of each partition that were reported as lost."""

    def on_event(self, world: World, event: Event) -> None:
        partition = str(event.facts.get("partition"))
        if event.kind == UNCLEAN_ELECTION:
            self._elections.add(partition)
        elif event.kind == RECORDS_LOST:
            for lost in event.facts["ranges"]:
                self._check_lost(partition, lost["first"], lost["end"])
                self.reported.setdefault(partition, []).append((lost["first"], lost["end"]))

    def _check_lost(self, partition: str, first: int, end: int) -> None:
        losses = [loss for loss in self._committed.losses if str(loss.log) == partition]
        for offset in range(first, end):
            if not any(loss.first <= offset < loss.end for loss in losses):
                raise Broken(f"{partition}: offset {offset} is reported as lost, but it is not")

    def at_end(self, world: World) -> None:
        for loss in self._committed.losses:
            if str(loss.log) not in self._elections:
                raise Broken(f"{loss.log} lost {loss.first} to {loss.end}, and nobody was told")
