"""How the controller may change a partition: epochs increase, leaders come from the ISR."""

from collections.abc import Iterable

from simulation.checkers.facts import Broken, Checker, LogId, StateChange, World
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, NodeId


class Elections(Checker):
    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        for log, before, after in changes:
            if after is None:
                continue
            self._check_state(str(log), after)
            if before is not None:
                self._check_epochs(str(log), before, after)
                if after.leader not in (before.leader, NO_NODE):
                    self._check_election(world, log, before, after)

    @staticmethod
    def _check_state(log: str, state: PartitionState) -> None:
        if not state.isr:
            raise Broken(f"{log} has an empty ISR: {state}")
        if not set(state.isr) <= set(state.replicas):
            raise Broken(f"{log} has brokers in sync that are no replicas: {state}")
        if state.leader != NO_NODE and state.leader not in state.isr:
            raise Broken(f"{log} is led by a replica that is not in sync: {state}")

    @staticmethod
    def _check_epochs(log: str, before: PartitionState, after: PartitionState) -> None:
        if after.partition_epoch <= before.partition_epoch:
            raise Broken(f"{log}: the partition epoch does not increase: {before} -> {after}")
        if after.leader_epoch < before.leader_epoch:
            raise Broken(f"{log}: the leader epoch decreases: {before} -> {after}")
        is_new = after.leader not in (before.leader, NO_NODE)
        if is_new and after.leader_epoch == before.leader_epoch:
            raise Broken(f"{log}: another leader in the same epoch: {before} -> {after}")
        if after.unclean_epoch not in (before.unclean_epoch, after.leader_epoch):
            raise Broken(
                f"{log}: the epoch of the last unclean election changes: {before} -> {after}"
            )

    @staticmethod
    def _check_election(
        world: World, log: LogId, before: PartitionState, after: PartitionState
    ) -> None:
        is_unclean = after.unclean_epoch == after.leader_epoch
        if after.leader in (*before.isr, *before.elr) and not is_unclean:
            return  # `committed` checks whether it has what is committed.
        if not is_unclean and _joins_and_completes(before, after):
            return  # `committed` checks it, as every replica that joins the ISR.
        if not (is_unclean and world.rules_of(log).unclean_election):
            raise Broken(f"{log}: elected from outside the ISR: {before} -> {after}")


def _joins_and_completes(before: PartitionState, after: PartitionState) -> bool:
    """Whether the write in which the leader adds the last replica of a target to the ISR also
    completes the reassignment, and makes that replica the leader."""
    return (
        before.is_reassigning
        and not after.is_reassigning
        and before.leader != NO_NODE
        and set(after.replicas) == set(before.target_replicas) == set(after.isr)
        and set(after.isr) - set(before.isr) == {after.leader}
    )
