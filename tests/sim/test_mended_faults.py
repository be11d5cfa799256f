"""Runs that found bugs of the brokers, each with the kinds of faults that led there."""

import pytest

from simulation.seeded_run import Options, run_seed

_PIPELINES = {"pipelines": True, "partitions": 2}
_UNDER_REQUESTS = {"churns": True, "looks_up_deleted": True}
RUNS = {
    "batches behind a refusal for storage": (
        [0, 17],
        Options(kinds=["fill disk"], force=_PIPELINES, trouble_s=6),
    ),
    "a look-up by time in a topic that is being deleted": (
        [30, 31],
        Options(kinds=["slow threads"], force=_UNDER_REQUESTS, trouble_s=6),
    ),
    "a link that is down for half an hour": (
        [0],
        Options(kinds=["reset"], trouble_s=1, long_cut=True),
    ),
    "a deletion that the disk refuses": (
        [2, 3],
        Options(kinds=["fail deletion"], force={"churns": True}, trouble_s=6),
    ),
    "a path that cannot be accessed for a while": (
        [1, 2],
        Options(kinds=["deny access"], force={"churns": True}, trouble_s=6),
    ),
    "replicas that are moved away from the last one that has everything": (
        [20, 177],
        Options(force={"reassigns": True}, trouble_s=6),
    ),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_cluster_survives(what: str) -> None:
    (seed, *_), options = RUNS[what]
    run_seed(seed, options)


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what, (seeds, _) in RUNS.items() if len(seeds) > 1])
def test_a_cluster_survives_with_other_seeds(what: str) -> None:
    (_, *seeds), options = RUNS[what]
    for seed in seeds:
        run_seed(seed, options)
