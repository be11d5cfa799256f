"""A simulated group in which nearly every event is a large one: its shard is closed all the time,
and all checkers hold, above all that the live state is what a replay gives (H0)."""

from typing import Any

import pytest

from simulation.seeded_run import Options, run_seed
from suwi.coordinator import appender, shard
from suwi.coordinator.shard import Shard
from suwi.env.slices import Slices
from suwi.group import offset_manager, offset_requests

MODULES = (appender, shard, offset_manager, offset_requests)


@pytest.mark.parametrize("consumer", [False, True])
def test_events_in_slices_under_faults(consumer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        monkeypatch.setattr(module, "RECORDS_PER_SLICE", 1)
    closed = 0
    begin = Shard._begin

    def counted(self: Shard[Any], steps: Slices[None]) -> None:
        nonlocal closed
        begin(self, steps)
        closed += self._is_closed

    monkeypatch.setattr(Shard, "_begin", counted)
    force = {"members": 3, "cooperative": False, "consumer": consumer}
    run_seed(1, Options(force=force, kinds=["kill", "isolate", "freeze"], long_cut=False))
    assert closed > 10
