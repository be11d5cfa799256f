"""What a reassignment can get wrong."""

from typing import Any

from simulation.seeded_run import Options
from suwi.controller import partition_changes, reassignment_control, reassignments
from tests.sim.mutants.mutant import FAULT, ScriptedMutant


def _completes_at_once(state: Any, live: Any, **_: Any) -> Any:
    """As soon as one replica of the target is in sync."""
    target = state.target_replicas
    leader = reassignments._leader_of(state, target, live)
    if not state.is_reassigning or leader == -1:
        return state
    return reassignments._assign(state, target, leader=leader)


def _cancels_the_wrong_ones(state: Any, live: Any, **limits: Any) -> Any:
    """The original replicas are removed, and those that were added stay."""
    checked = reassignments.cancel(state, live, **limits)
    target = state.target_replicas
    leader = reassignments._leader_of(state, target, live)
    return checked if leader == -1 else reassignments._assign(state, target, leader=leader)


_assign = reassignments._assign


def _assigns_in_the_same_epoch(state: Any, *assigned: Any, leader: Any) -> Any:
    after = _assign(state, *assigned, leader=leader)
    return after._replace(leader_epoch=state.leader_epoch + (leader != state.leader))


_OPTIONS = Options(kinds=["kill"], force={"reassigns": True, "brokers": 4})

MUTANTS = (
    ScriptedMutant(
        "completes-before-in-sync",
        FAULT,
        "a reassignment is complete before all replicas of its target are in sync",
        ((partition_changes, "complete", _completes_at_once),),
        options=_OPTIONS,
    ),
    ScriptedMutant(
        "cancels-the-wrong-replicas",
        FAULT,
        "a cancelled reassignment removes the original replicas, not those that were added",
        ((reassignment_control, "cancel", _cancels_the_wrong_ones),),
        options=_OPTIONS,
    ),
    ScriptedMutant(
        "removed-in-the-same-epoch",
        FAULT,
        "replicas are removed without a new leader epoch: a late fetch counts when they come back",
        ((reassignments, "_assign", _assigns_in_the_same_epoch),),
        options=_OPTIONS,
    ),
    ScriptedMutant(
        "reassigned-below-min-isr",
        FAULT,
        "a reassignment leaves fewer replicas in sync than min.insync.replicas, and the one that "
        "is left has lost power",
        ((reassignments, "_needed", lambda state, insync_min: 0),),
        options=Options(
            kinds=["lose power"],
            force={"reassigns": True, "min_insync_replicas": 2, "members": 0},
        ),
    ),
)
