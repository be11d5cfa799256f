"""What leaders ask of the controller: another in-sync set for a partition (AlterPartition). Pure.

`check_sender` checks who asks, `validate` one proposal. A leader that leaves itself out resigns,
for example because its disk is full. KIP-497: compare and set, by leader and partition epoch.
KIP-841, KIP-903: a broker does not join that is fenced, or was registered again since it caught up.
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
    """With the broker epochs in which the leader knows them."""
    is_recovering: bool = False


def check_sender(image: ClusterImage, node: NodeId, broker_epoch: int) -> None:
    """Raises StaleBrokerEpoch unless this is the broker's present life and it is in service."""
    broker = image.unfenced_brokers.get(node)
    if broker is None or broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {node} is not in service with epoch {broker_epoch}")


def validate(
    state: PartitionState,
    sender: NodeId,
    proposal: ProposedIsr,
    brokers: Mapping[NodeId, BrokerInfo],
    rules: Rules,
) -> PartitionState:
    """The state that a proposal leads to. Raises a `BrokerError`."""
    _check_epochs(state, sender, proposal)
    members = [node for node, _ in proposal.members]
    if not members or len(set(members)) < len(members):
        raise InvalidRequest("an in-sync set names each of its members once, and at least one")
    strangers = [node for node in members if node not in state.replicas]
    if strangers:
        raise InvalidRequest(f"broker {strangers[0]} has no replica of the partition")
    _check_recovery(state, proposal)
    for node, epoch in proposal.members:
        broker = brokers.get(node)
        if broker is None:
            raise IneligibleReplica(f"broker {node} is not in service")
        if epoch not in (ANY_EPOCH, broker.epoch):
            raise IneligibleReplica(f"broker {node} lives with epoch {broker.epoch}, not {epoch}")
    decided = with_members(state, members, rules)._replace(is_recovering=proposal.is_recovering)
    if sender not in members:
        if any(node not in state.isr for node in members):
            raise InvalidRequest("a leader that resigns cannot let others join")
        successor = next(node for node in state.replicas if node in members)
        epoch = LeaderEpoch(state.leader_epoch + 1)
        decided = decided._replace(leader=successor, leader_epoch=epoch)
    # A proposal that changes nothing is an answer the leader waits for, too.
    return decided._replace(partition_epoch=state.partition_epoch + 1)


def _check_epochs(state: PartitionState, sender: NodeId, proposal: ProposedIsr) -> None:
    if (
        proposal.leader_epoch > state.leader_epoch
        or proposal.partition_epoch > state.partition_epoch
    ):
        # The leader has seen more than this controller, which cannot be one any more.
        raise NotController("the partition is further than this controller knows")
    if proposal.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"the leader epoch is {state.leader_epoch}")
    if sender != state.leader:
        raise InvalidRequest(f"broker {sender} does not lead the partition")
    if proposal.partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersion(f"the partition epoch is {state.partition_epoch}")


def _check_recovery(state: PartitionState, proposal: ProposedIsr) -> None:
    """KIP-704: a leader recovers once, alone."""
    if proposal.is_recovering and not state.is_recovering:
        raise InvalidRequest("the partition is not recovering")
    if proposal.is_recovering and len(proposal.members) > 1:
        raise InvalidRequest("nobody joins a leader that is recovering")
