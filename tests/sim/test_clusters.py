"""Clusters with faults, from 200 seeds: no record is lost, duplicated or reordered; all recover.

`make sim` runs many more. A failure names its seed: `python -m simulation --seed N --trouble 5`.
"""

import os
import subprocess
import sys
from typing import Any

import pytest

from simulation.__main__ import main
from simulation.fault_kinds import KINDS
from simulation.seeded_run import Options, run_seed

SEEDS = 200
FEW_SEEDS = 10
AT_ONCE = 10
FIRST = {"kill", "lose power", "cut", "fill disk"}
"""The kinds of faults that stand for the others where time is short."""
SHORT = Options(trouble_s=5.0, pairs=True)


@pytest.mark.timeout(1200)  # Ten seeds; the limit, raised within a task, would look like a fault.
@pytest.mark.parametrize(
    "first",
    [
        *range(0, FEW_SEEDS, AT_ONCE),
        *(
            pytest.param(first, marks=pytest.mark.slow)
            for first in range(FEW_SEEDS, SEEDS, AT_ONCE)
        ),
    ],
)
def test_a_cluster_with_faults_keeps_its_guarantees(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        run = run_seed(seed, SHORT)
        assert run.acked
        assert run.read


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in FIRST)) for kind in KINDS]
)
def test_each_kind_of_fault_alone_is_survived(kind: str) -> None:
    run_seed(4711, Options(trouble_s=5.0, kinds=[kind]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"force": {"members": 0}}, marks=pytest.mark.slow),
        pytest.param({"force": {"members": 3, "cooperative": True}}, marks=pytest.mark.slow),
        {"pairs": True, "force": {"compacts": True, "grows": True, "throttles": True}},
    ],
    ids=["without a group", "with a group", "with a pair of mechanisms"],
)
def test_the_hash_of_a_clusters_run_depends_on_the_seed_alone(given: dict[str, Any]) -> None:
    expected = run_seed(7, Options(trouble_s=3.0, **given)).trace_hash
    script = (
        "from simulation.seeded_run import Options, run_seed;"
        f"print(run_seed(7, Options(trouble_s=3.0, **{given})).trace_hash)"
    )
    # This process has a hash seed of its own.
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == expected


def test_a_failure_is_reported_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "5", "--mutant", "truncate-to-watermark", "--trouble", "6"]) == 1
    told = capsys.readouterr().out
    command = told.split("again: python -m simulation ")[1].splitlines()[0]
    assert main(command.split()) == 1
    assert "Broken" in capsys.readouterr().out


def test_runs_that_pass_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--trouble", "3"]) == 0
    assert capsys.readouterr().out.startswith("2 runs passed, 0 failed;")
