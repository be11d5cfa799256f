"""What the replacement of damaged replicas can get wrong."""

from typing import Any

from simulation.seeded_run import Options
from suwi.controller import proposed_isr
from suwi.replica import damaged_replicas
from suwi.replica.damaged_replicas import Step, next_step
from suwi.replica.follower_replica import FollowerReplica
from suwi.replica.partition import Partition
from tests.sim.mutants.mutant import FAULT, ScriptedMutant


def _discards_at_once(node: Any, state: Any, *_: Any) -> Step:
    return Step.KEEP if state.leader == node else Step.DISCARD


def _discards_in_any_epoch(node: Any, state: Any, insync_min: int, stopped_in: Any) -> Step:
    stopped_before = None if stopped_in is None else stopped_in - 1
    return next_step(node, state, insync_min, stopped_before)


def _leader_discards(node: Any, state: Any, *given: Any) -> Step:
    return Step.DISCARD if state.leader == node else next_step(node, state, *given)


class _AnyReplica(FollowerReplica):
    def discard_damaged(self) -> None:
        replica_log = self._replica_log
        start = replica_log.get_ready().start_offset
        replica_log.change(self._restarting(start, keep_files=True))


_without_damaged = proposed_isr._without_damaged


def _leaves_in_the_same_epoch(state: Any, *proposed: Any) -> Any:
    return _without_damaged(state, *proposed)._replace(leader_epoch=state.leader_epoch)


_FORCE = {"scrubs": True, "members": 0, "copiers": 0, "reassigns": False, "churns": False}

MUTANTS = (
    ScriptedMutant(
        "discards-while-in-sync",
        FAULT,
        "a damaged follower discards its log before it has left the ISR",
        ((damaged_replicas, "next_step", _discards_at_once),),
        options=Options(kinds=["damage log"], force=_FORCE),
    ),
    ScriptedMutant(
        "discards-the-last-copy",
        FAULT,
        "a damaged leader discards its log at once, also if no other replica is in sync",
        (
            (damaged_replicas, "next_step", _leader_discards),
            (Partition, "follower", property(lambda self: _AnyReplica(self.replica_log))),
        ),
        options=Options(kinds=["damage log"], force=_FORCE),
    ),
)

DISCARDS_IN_THE_SAME_EPOCH = ScriptedMutant(
    "discards-in-the-same-epoch",
    FAULT,
    "a damaged follower leaves the ISR without a new leader epoch: a late fetch brings it back",
    (
        (damaged_replicas, "next_step", _discards_in_any_epoch),
        (proposed_isr, "_without_damaged", _leaves_in_the_same_epoch),
    ),
)
"""Seeds take too long to find it (one of 59 did): see `tests/broker/test_simulated_damage.py`."""
