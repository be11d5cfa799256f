"""Runs that come to faults of the brokers which are known and not mended yet.

Each is expected to fail. When its fault is mended it passes, which is an error here: then its mark
and its entry in `suwi.sim.held_back` go, and its seeds stay as an ordinary test.
"""

import pytest

from suwi.sim.held_back import (
    DENY,
    FAIL_DELETION,
    HELD_BACK,
    LONG_CUT,
    LOOK_UPS,
    PIPELINES,
)
from suwi.sim.scenario import Options, run_seed

_PIPELINES = {"pipelines": True, "partitions": 2}
_UNDER_REQUESTS = {"churns": True, "looks_up_deleted": True}
RUNS = [
    (PIPELINES, [0, 17], Options(kinds=["fill disk"], force=_PIPELINES, trouble_s=6)),
    (LOOK_UPS, [30, 31], Options(kinds=["slow threads"], force=_UNDER_REQUESTS, trouble_s=6)),
    (LONG_CUT, [0], Options(kinds=["reset"], trouble_s=1, long_cut=True)),
    (FAIL_DELETION, [2, 3], Options(kinds=["fail deletion"], force={"churns": True}, trouble_s=6)),
    (DENY, [1, 2], Options(kinds=["deny access"], force={"churns": True}, trouble_s=6)),
]


@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        pytest.param(seeds, options, id=name, marks=pytest.mark.xfail(strict=True, reason=why))
        for name, seeds, options in RUNS
        for why in [HELD_BACK.get(name, "mended: take its mark away")]
    ],
)
def test_a_run_that_is_held_back(seeds: list[int], options: Options) -> None:
    failed = []
    for seed in seeds:
        try:
            run_seed(seed, options)
        except AssertionError as error:
            failed.append((seed, str(error)))
    assert not failed
