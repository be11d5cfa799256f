"""The invariants of a simulated cluster that are checked after every step, one idea per file.

Checkers use facts (`facts`), not production objects: `simulation.invariant_monitor` collects them,
tests plant them. A checker raises `Broken` if an invariant does not hold.
"""

from simulation.checkers.committed import Committed
from simulation.checkers.controllers import Controllers
from simulation.checkers.elections import Elections
from simulation.checkers.facts import Broken, Checker
from simulation.checkers.leaders import Leaders
from simulation.checkers.logs import Logs
from simulation.checkers.losses import Losses
from simulation.checkers.reassignments import Reassignments
from simulation.checkers.recovery import Recovery
from simulation.checkers.topics import Topics
from simulation.checkers.watermarks import Watermarks

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
