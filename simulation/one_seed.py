"""One run from a seed, passed or failed. A separate module, because other processes import it."""

import importlib
import traceback
from dataclasses import replace
from typing import Any, NamedTuple

from simulation.scenario import Options, Run, run_seed

MUTANTS = "tests.sim.mutants"


class Failure(NamedTuple):
    seed: int
    text: str
    error: str
    """In one line."""


def try_seed(seed: int, mutant: str | None, trouble_s: float | None) -> Run | Failure:
    given: dict[str, Any] = {} if trouble_s is None else {"trouble_s": trouble_s}
    try:
        if mutant is None:
            return run_seed(seed, Options(pairs=True, **given))
        module: Any = importlib.import_module(MUTANTS)
        found = module.find(mutant)
        with found.applied():
            return run_seed(seed, replace(found.options, **given))
    except Exception as error:
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return Failure(seed, traceback.format_exc(), line)
