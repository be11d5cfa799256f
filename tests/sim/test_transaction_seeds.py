"""Copiers in transactions while everything fails: each record is copied exactly once."""

import pytest

from simulation.seeded_run import Options, run_seed
from tests.sim.mutants.transactions import COPIERS


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_records_are_copied_exactly_once(seed: int, version: int) -> None:
    run_seed(seed, Options(force={**COPIERS, "transaction_version": version}))
