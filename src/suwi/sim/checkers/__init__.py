"""The invariants of a simulated cluster that are checked after every step.

Checkers use facts (`facts`), not production objects: `suwi.sim.invariant_monitor` collects them,
tests plant them. A checker raises `Broken` if an invariant does not hold.
"""

from suwi.sim.checkers.committed import Committed, Losses
from suwi.sim.checkers.facts import Broken, Checker
from suwi.sim.checkers.partitions import Controllers, Elections, Reassignments
from suwi.sim.checkers.replicas import Leaders, Logs, Recovery, Topics, Watermarks

__all__ = ["Broken", "Checker", "Committed", "all_checkers"]


def all_checkers(committed: Committed) -> list[Checker]:
    """One of each; `committed` is passed in because others query it."""
    others = (Controllers, Elections, Reassignments, Recovery, Topics, Logs, Leaders, Watermarks)
    return [*(checker() for checker in others), committed, Losses(committed)]
