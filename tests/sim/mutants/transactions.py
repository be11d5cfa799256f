"""What transaction coordinators are known to get wrong: copiers in a simulated cluster notice it.

They have no transcript. Each has a fault script: two copiers, and what it takes to come to the
fault.
"""

from typing import Any

from suwi.coordinator.decision import Decision
from suwi.sim.scenario import Options
from suwi.transaction.coordinator_shard import TransactionCoordinatorShard
from tests.sim.mutants.mutant import FAULT, Mutant

COPIERS = {
    "copiers": 2,
    "partitions": 2,
    "members": 0,
    "unclean_elections": False,
    "deletes": False,
    "churns": False,
}


def _forget_prepared(_shard: Any, _now_ms: int, _decision: Decision) -> None:
    pass


MUTANTS = (
    Mutant(
        "prepared-transactions-are-forgotten",
        FAULT,
        "a new coordinator does not send the markers of transactions that were being ended",
        ((TransactionCoordinatorShard, "elected", _forget_prepared),),
        options=Options(force=COPIERS, kinds=["kill"], long_cut=False),
    ),
)
