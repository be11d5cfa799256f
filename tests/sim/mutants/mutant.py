"""Mutants that seeds alone take too long to catch."""

from dataclasses import dataclass, field

from simulation.seeded_run import Options
from suwi.lab.mutants import Mutant

FAULT = 100
"""In place of a hazard: a bug that brokers had."""


@dataclass(frozen=True)
class ScriptedMutant(Mutant):
    options: Options = field(default_factory=Options)
    """A fault script: the kinds of faults and of clients that lead to it."""


def options_of(mutant: Mutant) -> Options:
    return mutant.options if isinstance(mutant, ScriptedMutant) else Options()
