"""The invariants of a simulated cluster that are checked after every step, one idea per file.

Checkers use facts (`facts`), not production objects: `suwi.sim.invariant_monitor` collects them,
tests plant them. A checker raises `Broken` if an invariant does not hold.
"""

from suwi.sim.checkers.committed import Committed
from suwi.sim.checkers.controllers import Controllers
from suwi.sim.checkers.elections import Elections
from suwi.sim.checkers.facts import Broken, Checker
from suwi.sim.checkers.leaders import Leaders
from suwi.sim.checkers.logs import Logs
from suwi.sim.checkers.losses import Losses
from suwi.sim.checkers.reassignments import Reassignments
from suwi.sim.checkers.recovery import Recovery
from suwi.sim.checkers.topics import Topics
from suwi.sim.checkers.watermarks import Watermarks

__all__ = ["Broken", "Checker", "Committed", "all_checkers"]


def all_checkers(committed: Committed) -> list[Checker]:
    """One of each; `committed` is passed in because others query it."""
    return [
        Controllers(),
        Elections(),
        Reassignments(),
        Recovery(),
        Topics(),
        Logs(),
        Leaders(),
        Watermarks(),
        committed,
        Losses(committed),
    ]
