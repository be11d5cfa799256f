"""Seeds that came to faults of groups and of what watches them: each passes now."""

import pytest

from simulation.seeded_run import Options, run_seed

SEEDS = {
    # Threads stayed slow, and files that were cleaned looked pinned for good.
    312: {"cooperative": False, "consumer": False},
    # An error of the disk while a follower replayed failed its coordinator for good.
    527: {"cooperative": True, "consumer": False},
    # A coordinator that did not know of its successor answered with an old offset, for as long as
    # its ISR may have fetched from it.
    95: {"consumer": True},
    # A heartbeat that had timed out was handled after the next one.
    125: {"consumer": True},
}
LONG = 527
"""It takes longer than the others together."""


@pytest.mark.parametrize(
    "known", [pytest.param(seed, marks=[pytest.mark.slow] * (seed == LONG)) for seed in SEEDS]
)
def test_a_seed_that_failed_once_passes(known: int) -> None:
    run_seed(known, Options(force={"members": 3, **SEEDS[known]}))
