"""Which ISR proposals of a leader are valid, and the errors for others (hazard Z2)."""

import pytest

from suwi.controller.elections import Rules
from suwi.controller.proposed_isr import ANY_EPOCH, ProposedIsr, check_sender, validate
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState
from suwi.model.errors import (
    BrokerError,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId

B1, B2, B3, B4 = (NodeId(node) for node in (1, 2, 3, 4))
STATE = PartitionState(B1, LeaderEpoch(4), 9, (B1, B2, B3), (B1, B2))
LIVE = {node: BrokerInfo(node, (), None, epoch=10 * node) for node in (B1, B2, B3)}


def proposal(
    *members: int, epochs: dict[int, int] | None = None, leader_epoch: int = 4, number: int = 9
) -> ProposedIsr:
    known = {1: 10, 2: 20, 3: 30, 4: 40, **(epochs or {})}
    epochs = tuple((NodeId(node), known[node]) for node in members)
    return ProposedIsr(LeaderEpoch(leader_epoch), number, epochs)


def validated(proposed: ProposedIsr, sender: NodeId = B1, insync_min: int = 1) -> PartitionState:
    return validate(STATE, sender, proposed, LIVE, Rules(insync_min=insync_min))


def test_a_leader_adds_a_follower_to_the_isr() -> None:
    state = validated(proposal(1, 2, 3))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 4, 10)
    assert state.isr == (1, 2, 3)


def test_a_follower_that_leaves_below_min_isr_joins_the_elr() -> None:
    assert validated(proposal(1)).elr == ()
    assert validated(proposal(1), insync_min=2).elr == (2,)


def test_a_follower_can_leave_the_isr_and_do_nothing_else() -> None:
    state = validated(proposal(1, epochs={1: ANY_EPOCH}), sender=B2)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 4, 10)
    assert state.isr == (1,)
    for members in [(1, 2), (1, 3), (2,), (3,), ()]:
        with pytest.raises(InvalidRequest):
            validated(proposal(*members), sender=B2)
    with pytest.raises(InvalidRequest):
        validated(proposal(1, 2), sender=B3)  # It is not a member.


def test_a_follower_that_will_discard_its_log_leaves_with_a_new_leader_epoch() -> None:
    """A fetch that it sent before, and that arrives late, must not bring it back."""
    for sender, members in ((B2, (1,)), (B3, (1, 2))):
        leaving = proposal(*members)._replace(is_recovering=True)
        state = validated(leaving, sender=sender)
        assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 5, 10)
        assert (state.isr, state.elr) == (members, ())
    with pytest.raises(InvalidRequest):
        validated(proposal(1, 2)._replace(is_recovering=True), sender=B2)


def test_a_log_is_not_discarded_without_a_leader_and_enough_others_in_sync() -> None:
    leaving = proposal(1)._replace(is_recovering=True)
    with pytest.raises(InvalidRequest):
        validated(leaving, sender=B2, insync_min=2)
    leaderless = STATE._replace(leader=NO_NODE)
    with pytest.raises(InvalidRequest):
        validate(leaderless, B2, leaving, LIVE, Rules())
    alone = STATE._replace(isr=(B2,), leader=NO_NODE)
    with pytest.raises(InvalidRequest):
        validate(alone, B2, leaving._replace(members=()), LIVE, Rules())


def test_a_leader_that_is_not_in_its_proposal_resigns() -> None:
    state = validated(proposal(2))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 10)
    assert state.isr == (2,)


def test_a_broker_epoch_that_was_not_sent_is_not_compared() -> None:
    assert validated(proposal(1, 3, epochs={3: ANY_EPOCH})).isr == (1, 3)


def test_a_leader_completes_its_recovery() -> None:
    state = STATE._replace(isr=(B1,), is_recovering=True)
    assert not validate(state, B1, proposal(1), LIVE, Rules()).is_recovering
    assert validate(
        state, B1, proposal(1)._replace(is_recovering=True), LIVE, Rules()
    ).is_recovering


@pytest.mark.parametrize(
    ("sender", "proposed", "error"),
    [
        pytest.param(B1, proposal(1, leader_epoch=3), FencedLeaderEpoch, id="an older leader"),
        pytest.param(B1, proposal(1, leader_epoch=5), NotController, id="a newer leader"),
        pytest.param(B1, proposal(1, number=8), InvalidUpdateVersion, id="an older partition"),
        pytest.param(B1, proposal(1, number=10), NotController, id="a newer partition"),
        pytest.param(B2, proposal(2), InvalidRequest, id="a follower"),
        pytest.param(B1, proposal(), InvalidRequest, id="empty ISR"),
        pytest.param(B1, proposal(1, 2, 2), InvalidRequest, id="a broker twice"),
        pytest.param(B1, proposal(1, 4), InvalidRequest, id="not a replica"),
        pytest.param(B1, proposal(2, 3), InvalidRequest, id="resigns for a replica out of sync"),
        pytest.param(B1, proposal(1, 3, epochs={3: 29}), IneligibleReplica, id="hazard 10"),
        pytest.param(
            B1, proposal(1)._replace(is_recovering=True), InvalidRequest, id="not recovering"
        ),
    ],
)
def test_invalid_proposals_are_refused(
    sender: NodeId, proposed: ProposedIsr, error: type[BrokerError]
) -> None:
    with pytest.raises(error):
        validated(proposed, sender)


def test_an_unregistered_or_fenced_broker_cannot_join_the_isr() -> None:
    without = {node: broker for node, broker in LIVE.items() if node != B3}
    with pytest.raises(IneligibleReplica):
        validate(STATE, B1, proposal(1, 3), without, Rules())


def test_no_replica_can_join_the_isr_of_a_recovering_leader() -> None:
    state = STATE._replace(isr=(B1,), is_recovering=True)
    with pytest.raises(InvalidRequest):
        validate(state, B1, proposal(1, 2)._replace(is_recovering=True), LIVE, Rules())


def test_the_sender_must_be_unfenced_with_its_current_broker_epoch() -> None:
    image = ClusterImage(registered_brokers=LIVE, unfenced_brokers={B1: LIVE[B1]})
    check_sender(image, B1, 10)
    for node, epoch in [(B1, 9), (B2, 20), (B4, 40)]:
        with pytest.raises(StaleBrokerEpoch):
            check_sender(image, node, epoch)
