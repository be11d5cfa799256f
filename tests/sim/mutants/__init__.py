"""Known bugs, put back in: each mutant is a hazard or a former bug that the simulation must catch.

A mutant patches production code while it is applied. `python -m simulation --mutant NAME` looks for
a seed that catches it; `--mutants` does so for all of them and prints a table. Those of hazards
also change the transcript of their hazard. Those that the lab shows are in `suwi.lab.mutants`.
"""

from suwi.lab import mutants as lab
from suwi.lab.mutants import Mutant
from tests.sim.mutants import (
    controller,
    damage,
    faults,
    groups,
    log,
    reassignments,
    replica,
    tasks,
    transactions,
)
from tests.sim.mutants.mutant import FAULT, options_of

__all__ = ["FAULT", "MUTANTS", "Mutant", "find", "options_of"]

MUTANTS: tuple[Mutant, ...] = (
    *lab.MUTANTS.values(),
    *replica.MUTANTS,
    *controller.MUTANTS,
    *log.MUTANTS,
    *faults.MUTANTS,
    *groups.MUTANTS,
    *reassignments.MUTANTS,
    *damage.MUTANTS,
    *transactions.MUTANTS,
    *tasks.MUTANTS,
)


def find(name: str) -> Mutant:
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise KeyError(f"no mutant is called {name}; there are: {', '.join(m.name for m in MUTANTS)}")
