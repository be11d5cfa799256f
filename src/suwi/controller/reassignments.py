"""Partition reassignments (KIP-455): a partition's replicas move to other brokers. Pure.

`reassign` starts one, or gives the one that runs another target; `cancel` returns to the original
replicas; `complete` ends it once every replica of the target is in sync.
While it runs, `replicas` has the target, then the original replicas, then replicas that an
overridden reassignment added and that are in sync. Those in `adding_replicas` are not original,
those in `removing_replicas` are not in the target; one that is in both goes either way.
Invariants: the partition's state is all there is to know of a reassignment; no step elects a leader
that is not in sync; a step that removes replicas which have all committed records leaves as many in
sync as min.insync.replicas, because a broker may have lost power that still counts as live; it also
starts a new leader epoch, so that no fetch that a removed replica has sent counts once it is added
again with an empty log.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from suwi.metadata.image import ClusterImage, PartitionState, partitions_of
from suwi.model.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
)
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, TopicPartition


def check_target(
    state: PartitionState,
    target: Sequence[int],
    registered: Collection[NodeId],
    *,
    insync_min: int,
    allow_replication_factor_change: bool,
) -> tuple[NodeId, ...]:
    """The target of a reassignment, validated. An original replica may be down.

    Raises InvalidReplicaAssignment, InvalidReplicationFactor.
    """
    if not target:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment(f"the replicas {list(target)} name a broker twice")
    for node in target:
        if node not in registered and node not in state.original_replicas:
            raise InvalidReplicaAssignment(f"no broker with the id {node} is registered")
    factor = len(state.target_replicas)
    if not allow_replication_factor_change and len(target) != factor:
        raise InvalidReplicationFactor(
            f"the replication factor would change from {factor} to {len(target)}"
        )
    if len(target) < _needed(state, insync_min):
        raise InvalidReplicationFactor(
            f"{len(target)} replicas are fewer than min.insync.replicas {insync_min}: lower that "
            "first"
        )
    return tuple(NodeId(node) for node in target)


def _needed(state: PartitionState, insync_min: int) -> int:
    """How many replicas at least have every committed record."""
    return min(insync_min, state.replication_factor)


def reassign(state: PartitionState, target: tuple[NodeId, ...]) -> PartitionState:
    """The state with a new target; unchanged if it has that target already.

    Replicas that an overridden reassignment added are removed at once, except those that have all
    committed records: they may be the only ones alive that do.
    """
    original = state.original_replicas
    in_sync = (*state.isr, *state.elr)
    overridden = [node for node in state.adding_replicas if node in in_sync]
    replicas = tuple(dict.fromkeys((*target, *original, *overridden)))
    adding = tuple(node for node in replicas if node not in original)
    removing = tuple(node for node in replicas if node not in target)
    assigned = (replicas, adding, removing)
    if assigned == (state.replicas, state.adding_replicas, state.removing_replicas):
        return state
    return _assign(state, *assigned, leader=state.leader)


def cancel(state: PartitionState, live: Collection[NodeId], *, insync_min: int) -> PartitionState:
    """The state with the original replicas. Raises NoReassignmentInProgress, and
    InvalidReplicaAssignment if too few of them are in sync."""
    if not state.is_reassigning:
        raise NoReassignmentInProgress("no reassignment of the partition is in progress")
    original = state.original_replicas
    leader = NO_NODE if state.leader == NO_NODE else _leader_of(state, original, live)
    if any(node in state.adding_replicas for node in (*state.isr, *state.elr)):
        # Each of these may be the only one that has all committed records.
        left = sum(node in original for node in state.isr)
        if leader == NO_NODE or left < _needed(state, insync_min):
            raise InvalidReplicaAssignment(
                "too few of the original replicas are in sync: cancelling would remove replicas "
                "that have all records"
            )
    return _assign(state, original, leader=leader)


def complete(state: PartitionState, live: Collection[NodeId], *, insync_min: int) -> PartitionState:
    """The state with the target's replicas if all of them are in sync and one of them can lead;
    else unchanged. `insync_min` may have been raised since the target was checked."""
    if not state.is_reassigning or state.leader == NO_NODE:
        return state
    target = state.target_replicas
    if not set(target) <= set(state.isr) or len(target) < _needed(state, insync_min):
        return state
    leader = _leader_of(state, target, live)
    return state if leader == NO_NODE else _assign(state, target, leader=leader)


def _leader_of(
    state: PartitionState, replicas: Sequence[NodeId], live: Collection[NodeId]
) -> NodeId:
    """The leader stays if it is one of `replicas`."""
    if state.leader in replicas:
        return state.leader
    return next((node for node in replicas if node in live and node in state.isr), NO_NODE)


def _assign(
    state: PartitionState,
    replicas: tuple[NodeId, ...],
    adding: tuple[NodeId, ...] = (),
    removing: tuple[NodeId, ...] = (),
    *,
    leader: NodeId,
) -> PartitionState:
    starts_epoch = leader != state.leader or not set(state.replicas) <= set(replicas)
    isr = tuple(node for node in state.isr if node in replicas)
    assert isr, "the ISR is never empty"
    assert leader == NO_NODE or leader in isr
    return state._replace(
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + starts_epoch),
        partition_epoch=state.partition_epoch + 1,
        replicas=replicas,
        isr=isr,
        elr=tuple(node for node in state.elr if node in replicas),
        unclean_shutdown_replicas=tuple(
            node for node in state.unclean_shutdown_replicas if node in replicas
        ),
        adding_replicas=adding,
        removing_replicas=removing,
    )


def reassignments(
    image: ClusterImage, asked: Mapping[str, Collection[int]] | None
) -> Iterator[tuple[TopicPartition, PartitionState] | None]:
    """The partitions that are being reassigned: of all topics, or those `asked` for.

    None for each one that is looked at and is not, so that the caller can go in slices.
    """
    for name in image.topics if asked is None else asked:
        topic = image.topics.get(name)
        if topic is None:
            yield None
            continue
        for tp, state in partitions_of(topic):
            is_meant = asked is None or tp.partition in asked[name]
            yield (tp, state) if state.is_reassigning and is_meant else None


def replicas_on(image: ClusterImage, node: NodeId) -> list[TopicPartition]:
    """The partitions of which a broker has, or is to get, a replica."""
    return [
        tp
        for topic in image.topics.values()
        for tp, state in partitions_of(topic)
        if node in state.replicas
    ]
