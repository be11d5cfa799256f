"""Seeds that came to faults of groups and of what watches them: each passes now."""

import pytest

from suwi.sim.scenario import Options, run_seed

SEEDS = {
    312: False,  # Threads stayed slow, and files that were cleaned looked pinned for good.
    527: True,  # An error of the disk while a follower replayed failed its coordinator for good.
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    run_seed(seed, Options(force={"members": 3, "cooperative": SEEDS[seed]}))
