"""Validates a new ISR that a partition leader proposes to the controller (AlterPartition). Pure.

`check_sender` checks the sender, `validate` one proposal. A leader that is not in its own proposal
resigns, for example because its disk is full; a follower may propose to leave. KIP-497: compare and
set, by leader epoch and partition epoch. KIP-841, KIP-903: a broker cannot join the ISR if it is
fenced, or was registered again since it caught up.
"""

from collections.abc import Mapping
from typing import NamedTuple

from suwi.controller.elections import Rules, with_members
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState
from suwi.model.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from suwi.model.ids import LeaderEpoch, NodeId

ANY_EPOCH = -1
"""In place of a member's broker epoch: AlterPartition v2 does not carry one."""


class ProposedIsr(NamedTuple):
    leader_epoch: LeaderEpoch
    partition_epoch: int
    members: tuple[tuple[NodeId, int], ...]
    """With the broker epochs that the leader knows."""
    is_recovering: bool = False
    """Of a leader, see KIP-704. Of a follower, Suwi's own: it leaves, and will discard its log."""


def check_sender(image: ClusterImage, node: NodeId, broker_epoch: int) -> None:
    """Raises StaleBrokerEpoch unless the broker is unfenced and registered with this epoch."""
    broker = image.unfenced_brokers.get(node)
    if broker is None or broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {node} is not active with epoch {broker_epoch}")


def validate(
    state: PartitionState,
    sender: NodeId,
    proposal: ProposedIsr,
    brokers: Mapping[NodeId, BrokerInfo],
    rules: Rules,
) -> PartitionState:
    """The state after the proposal. Raises a `BrokerError`."""
    _check_epochs(state, proposal)
    members = [node for node, _ in proposal.members]
    if sender != state.leader:
        if proposal.is_recovering:
            return _without_damaged(state, sender, members, rules)
        return _without_follower(state, sender, members, rules)
    if not members or len(set(members)) < len(members):
        raise InvalidRequest("the ISR must not be empty or contain a broker twice")
    not_replicas = [node for node in members if node not in state.replicas]
    if not_replicas:
        raise InvalidRequest(f"broker {not_replicas[0]} has no replica of the partition")
    _check_recovery(state, proposal)
    for node, epoch in proposal.members:
        broker = brokers.get(node)
        if broker is None:
            raise IneligibleReplica(f"broker {node} is fenced or not registered")
        if epoch not in (ANY_EPOCH, broker.epoch):
            raise IneligibleReplica(f"broker {node} has epoch {broker.epoch}, not {epoch}")
    decided = with_members(state, members, rules)._replace(is_recovering=proposal.is_recovering)
    if sender not in members:
        if any(node not in state.isr for node in members):
            raise InvalidRequest("a leader that resigns cannot add replicas to the ISR")
        successor = next(node for node in state.replicas if node in members)
        epoch = LeaderEpoch(state.leader_epoch + 1)
        decided = decided._replace(leader=successor, leader_epoch=epoch)
    # Also for an unchanged ISR: the leader waits for a new partition epoch.
    return decided._replace(partition_epoch=state.partition_epoch + 1)


def _without_follower(
    state: PartitionState, sender: NodeId, members: list[NodeId], rules: Rules
) -> PartitionState:
    if sender not in state.isr or members != [node for node in state.isr if node != sender]:
        raise InvalidRequest(f"broker {sender} does not lead the partition: it can only leave")
    return with_members(state, members, rules)._replace(partition_epoch=state.partition_epoch + 1)


def _without_damaged(
    state: PartitionState, sender: NodeId, members: list[NodeId], rules: Rules
) -> PartitionState:
    """A follower that will discard its log. Others must have everything, and enough of them. With
    the new leader epoch the leader refuses fetches that the follower sent before, which would
    acknowledge records that it will not have."""
    if sender not in state.replicas or members != [node for node in state.isr if node != sender]:
        raise InvalidRequest(f"broker {sender} does not lead the partition: it can only leave")
    if state.leader not in members:
        raise InvalidRequest("the partition has no leader: no replica can be discarded")
    if len(members) < min(rules.insync_min, state.replication_factor):
        raise InvalidRequest("too few other replicas are in sync")
    return with_members(state, members, rules)._replace(
        leader_epoch=LeaderEpoch(state.leader_epoch + 1), partition_epoch=state.partition_epoch + 1
    )


def _check_epochs(state: PartitionState, proposal: ProposedIsr) -> None:
    if (
        proposal.leader_epoch > state.leader_epoch
        or proposal.partition_epoch > state.partition_epoch
    ):
        # The leader has a newer image than this broker, so another broker must be controller.
        raise NotController("the proposal has a newer epoch than this controller's metadata")
    if proposal.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"the leader epoch is {state.leader_epoch}")
    if proposal.partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersion(f"the partition epoch is {state.partition_epoch}")


def _check_recovery(state: PartitionState, proposal: ProposedIsr) -> None:
    """KIP-704: a leader recovers only once, and alone in the ISR."""
    if proposal.is_recovering and not state.is_recovering:
        raise InvalidRequest("the partition is not recovering")
    if proposal.is_recovering and len(proposal.members) > 1:
        raise InvalidRequest("no replica can join the ISR while the leader is recovering")
