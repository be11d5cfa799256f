"""Same seed, same run."""

import os
import subprocess
import sys

import pytest

from tests.sim import chatter


@pytest.mark.parametrize("seed", [1, 2])
def test_the_hash_of_a_run_depends_on_the_seed_alone(seed: int) -> None:
    outputs = set()
    for hash_seed in ("0", "1", "4711"):
        outputs.add(
            subprocess.run(
                [sys.executable, chatter.__file__, str(seed)],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
        )
    assert outputs == {chatter.main(seed)}


def test_different_seeds_give_different_runs() -> None:
    assert len({chatter.main(seed) for seed in range(20)}) == 20


def test_no_seed_makes_a_world_of_kills_and_cuts_fail() -> None:
    for seed in range(100, 140):
        chatter.main(seed)
