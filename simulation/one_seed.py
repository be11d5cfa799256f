"""One run from a seed, passed or failed. A separate module, because other processes import it."""

import importlib
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from simulation.seeded_run import Options, Run, run_seed
from suwi.lab.events import Recording

MUTANTS = "tests.sim.mutants"


class Failure(NamedTuple):
    seed: int
    text: str
    error: str
    """In one line."""


def try_seed(
    seed: int,
    mutant: str | None,
    trouble_s: float | None,
    record: Callable[[Recording], None] | None = None,
    *,
    is_planted: bool = True,
) -> Run | Failure:
    """`is_planted`: otherwise it is the run that the mutant would be planted in."""
    given: dict[str, Any] = {} if trouble_s is None else {"trouble_s": trouble_s}
    try:
        if mutant is None:
            return run_seed(seed, Options(pairs=True, **given), record)
        module: Any = importlib.import_module(MUTANTS)
        found = module.find(mutant)
        options = replace(module.options_of(found), **given)
        if not is_planted:
            return run_seed(seed, options, record)
        with found.applied():
            return run_seed(seed, options, record and _named(record, mutant))
    except Exception as error:
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return Failure(seed, traceback.format_exc(), line)


def _named(record: Callable[[Recording], None], mutant: str) -> Callable[[Recording], None]:
    return lambda found: record(replace(found, source=f"{found.source}, {mutant}"))
