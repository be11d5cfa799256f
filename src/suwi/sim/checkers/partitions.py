"""How the controller may change partitions: who writes, and what may follow a state."""

from collections import deque
from collections.abc import Iterable

from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.checkers.facts import Broken, Checker, LogId, Replica, StateChange, World

_ELECTIONS_MAX, _WITHIN_S = 50, 5.0


class Controllers(Checker):
    """Only the active controller writes the cluster's state, and each has a greater epoch.

    There are few elections in a short time: brokers must not depose each other without end.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._elected_s: deque[float] = deque(maxlen=_ELECTIONS_MAX)

    def on_controller(self, world: World, epoch: int) -> None:
        if epoch <= self._epoch:
            raise Broken(f"controller epoch {epoch} comes after {self._epoch}")
        self._epoch = epoch
        self._elected_s.append(world.now_s)
        if len(self._elected_s) == _ELECTIONS_MAX and world.now_s - self._elected_s[0] < _WITHIN_S:
            raise Broken(
                f"{_ELECTIONS_MAX} controllers within {_WITHIN_S:g} s: elections do not end"
            )

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        if author is None:
            return
        for change in changes:
            if world.controller is None or world.controller[0] != author:
                active = f"b{world.controller[0]}" if world.controller else "nobody"
                raise Broken(f"b{author} changes {change.log}, but {active} is the controller")


class Elections(Checker):
    """How the controller may change a partition: epochs increase, leaders come from the ISR."""

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


class Reassignments(Checker):
    """How a partition's replicas may change: everything is kept until the new replicas are in sync.

    Replicas are removed when the target is reached, which then is in sync; when a reassignment is
    cancelled, which returns to the original replicas; or when a new target overrides one whose
    replicas are not in sync. Each starts a new leader epoch. A broker deletes a log only if the
    replica is no longer needed, however old the broker's image is.
    """

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
