"""How a partition's replicas may change: everything is kept until the new replicas are in sync.

Replicas are removed when the target is reached, which then is in sync; when a reassignment is
cancelled, which returns to the original replicas; or when a new target overrides one whose replicas
are not in sync. Each starts a new leader epoch. A broker deletes a log only if the replica is no
longer needed, however old the broker's image is.
"""

from collections.abc import Iterable

from simulation.checkers.facts import Broken, Checker, Replica, StateChange, World
from suwi.metadata.image import PartitionState
from suwi.model.ids import NodeId


class Reassignments(Checker):
    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        for log, before, after in changes:
            if before is None or after is None:
                continue
            removed = set(before.replicas) - set(after.replicas)
            if removed and after.leader_epoch == before.leader_epoch:
                raise Broken(f"{log}: replicas removed in the same epoch: {before} -> {after}")
            if after.is_reassigning and not before.is_reassigning:
                self._check_original(str(log), before, after, before.replicas)
            elif after.is_reassigning:
                self._check_original(str(log), before, after, before.original_replicas)
                if not removed <= set(before.adding_replicas) - set(before.isr):
                    raise Broken(f"{log}: b{removed} removed too early: {before} -> {after}")
            elif set(after.replicas) not in (
                set(before.replicas),
                set(before.original_replicas),
            ) and not set(after.replicas) <= set(after.isr):
                raise Broken(f"{log}: a target that is not in sync is final: {before} -> {after}")

    def on_deleted(self, world: World, replica: Replica) -> None:
        state = world.states.get(replica.log)
        if state is not None and replica.node in (*state.isr, *state.elr):
            raise Broken(f"{replica} is deleted, but may have what no other replica has: {state}")

    @staticmethod
    def _check_original(
        log: str, before: PartitionState, after: PartitionState, original: tuple[NodeId, ...]
    ) -> None:
        if set(after.original_replicas) != set(original):
            raise Broken(f"{log}: the original replicas change: {before} -> {after}")
