"""Each step of a reassignment, as a function of the partition's state (hazard Z14)."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.controller import reassignments as steps
from suwi.controller.elections import BrokerLiveness, Election, Rules, compute_change
from suwi.controller.partition_changes import PartitionChanges
from suwi.controller.proposed_isr import ANY_EPOCH, ProposedIsr, validate
from suwi.controller.reassignments import (
    check_target,
    reassign,
    reassignments,
    replicas_on,
)
from suwi.metadata.image import BrokerInfo, PartitionState, decode_shard, encode_shards
from suwi.model.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
)
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from tests.controller.test_partition_changes import image_of, tp

B1, B2, B3, B4, B5 = (NodeId(node) for node in range(1, 6))
LIVE = {node: BrokerInfo(node, (), None, epoch=node) for node in (B1, B2, B3, B4, B5)}
STATE = PartitionState(B1, LeaderEpoch(4), 9, (B1, B2), (B1, B2))
complete = partial(steps.complete, insync_min=1)
cancel = partial(steps.cancel, insync_min=1)


def with_isr(state: PartitionState, *isr: NodeId) -> PartitionState:
    return state._replace(isr=isr, partition_epoch=state.partition_epoch + 1)


def test_the_target_comes_first_and_everything_stays_until_it_is_in_sync() -> None:
    state = reassign(STATE, (B3, B2))
    assert state.replicas == (B3, B2, B1)
    assert (state.adding_replicas, state.removing_replicas) == ((B3,), (B1,))
    assert (state.leader, state.isr, state.partition_epoch) == (B1, (B1, B2), 10)
    assert state.leader_epoch == 4  # Nothing is removed yet.
    assert complete(state, LIVE) is state
    assert complete(with_isr(state, B1, B3), LIVE).is_reassigning  # B2 belongs to the target.


def test_it_completes_once_every_replica_of_the_target_is_in_sync() -> None:
    state = complete(with_isr(reassign(STATE, (B2, B3)), B1, B2, B3), LIVE)
    assert not state.is_reassigning
    assert (state.replicas, state.isr) == ((B2, B3), (B2, B3))
    assert (state.leader, state.leader_epoch) == (B2, 5)


def test_a_leader_that_stays_leads_on_in_a_new_epoch_when_replicas_are_removed() -> None:
    state = complete(with_isr(reassign(STATE, (B3, B1)), B1, B2, B3), LIVE)
    assert (state.leader, state.leader_epoch) == (B1, 5)


def test_more_replicas_need_no_new_leader_epoch() -> None:
    state = reassign(STATE, (B1, B2, B3))
    assert (state.adding_replicas, state.removing_replicas) == ((B3,), ())
    state = complete(with_isr(state, B1, B2, B3), LIVE)
    assert (state.replicas, state.leader_epoch, state.is_reassigning) == ((B1, B2, B3), 4, False)


def test_fewer_replicas_and_another_order_are_complete_at_once() -> None:
    fewer = complete(reassign(STATE, (B2,)), LIVE)
    assert (fewer.replicas, fewer.leader, fewer.leader_epoch) == ((B2,), B2, 5)
    ordered = complete(reassign(STATE, (B2, B1)), LIVE)
    assert (ordered.replicas, ordered.leader, ordered.leader_epoch) == ((B2, B1), B1, 4)
    assert not ordered.is_reassigning


def test_the_same_target_changes_nothing() -> None:
    assert reassign(STATE, (B1, B2)) is STATE
    state = reassign(STATE, (B3, B4))
    assert reassign(state, (B3, B4)) is state


def test_a_new_target_removes_what_the_old_one_added() -> None:
    state = reassign(reassign(STATE, (B3, B4)), (B4, B5))
    assert state.replicas == (B4, B5, B1, B2)
    assert (state.adding_replicas, state.removing_replicas) == ((B4, B5), (B1, B2))
    assert state.leader_epoch == 5  # B3 is removed.


def test_a_replica_of_the_old_target_that_is_in_sync_stays_until_the_new_one_is() -> None:
    overridden = reassign(STATE, (B3, B4))._replace(leader=B3, isr=(B3,))
    state = reassign(overridden, (B4, B5))
    assert state.replicas == (B4, B5, B1, B2, B3)
    assert (state.leader, state.isr) == (B3, (B3,))
    assert (state.adding_replicas, state.removing_replicas) == ((B4, B5, B3), (B1, B2, B3))
    done = complete(with_isr(state, B3, B4, B5), LIVE)
    assert (done.replicas, done.leader, done.isr) == ((B4, B5), B4, (B4, B5))
    undone = cancel(with_isr(state, B3, B1), LIVE)
    assert (undone.replicas, undone.leader, undone.isr) == ((B1, B2), B1, (B1,))


def test_a_cancelled_reassignment_removes_only_what_was_added() -> None:
    state = cancel(with_isr(reassign(STATE, (B2, B3)), B1, B2, B3), LIVE)
    assert not state.is_reassigning
    assert sorted(state.replicas) == [B1, B2]
    assert (state.isr, state.leader, state.leader_epoch) == ((B1, B2), B1, 5)


def test_cancelling_moves_the_leader_back_to_an_original_replica() -> None:
    running = reassign(STATE, (B3, B4))._replace(leader=B3, isr=(B3, B2))
    state = cancel(running, LIVE)
    assert (state.leader, state.isr, state.leader_epoch) == (B2, (B2,), 5)


def test_cancelling_never_elects_a_replica_that_is_not_in_sync() -> None:
    running = reassign(STATE, (B3, B4))
    for only_added in (
        running._replace(leader=B3, isr=(B3,)),
        running._replace(leader=NO_NODE, isr=(B1, B3)),
        running._replace(leader=NO_NODE, isr=(B1,), elr=(B3,)),
    ):
        with pytest.raises(InvalidReplicaAssignment):
            cancel(only_added, LIVE)
    dead = running._replace(leader=B3, isr=(B3, B2))
    with pytest.raises(InvalidReplicaAssignment):
        cancel(dead, [B1, B3])
    assert cancel(running._replace(leader=NO_NODE, isr=(B1,)), [B3]).leader == NO_NODE


def test_cancelling_does_not_remove_replicas_in_sync_if_that_leaves_fewer_than_min_isr() -> None:
    """B1 may have lost power, while it still counts as live."""
    running = with_isr(reassign(STATE, (B3, B4)), B1, B3)
    for only_one_left in (running, with_isr(running, B1)._replace(elr=(B3,))):
        with pytest.raises(InvalidReplicaAssignment):
            steps.cancel(only_one_left, LIVE, insync_min=2)
    assert cancel(running, LIVE).isr == (B1,)
    assert steps.cancel(with_isr(running, B1, B2, B3), LIVE, insync_min=2).isr == (B1, B2)
    assert steps.cancel(with_isr(running, B1), LIVE, insync_min=2).isr == (B1,)


def test_a_target_has_at_least_as_many_replicas_as_min_isr() -> None:
    def check(state: PartitionState, *target: int) -> None:
        check_target(state, target, LIVE, insync_min=2, allow_replication_factor_change=True)

    with pytest.raises(InvalidReplicationFactor, match=r"min\.insync\.replicas 2"):
        check(STATE, 2)
    check(STATE._replace(replicas=(B1,), isr=(B1,)), 2)  # One replica is all it has.
    running = reassign(STATE, (B2,))
    assert steps.complete(running, LIVE, insync_min=2) is running  # Raised meanwhile.


def test_only_a_reassignment_can_be_cancelled() -> None:
    with pytest.raises(NoReassignmentInProgress):
        cancel(STATE, LIVE)


def test_without_a_leader_nothing_is_completed() -> None:
    """A replica to be removed may be the only one that did not lose records."""
    state = with_isr(reassign(STATE, (B2, B3)), B1, B2, B3)._replace(leader=NO_NODE)
    assert complete(state, LIVE) is state


def test_a_replica_that_is_removed_leaves_the_elr_too() -> None:
    state = with_isr(reassign(STATE, (B3,)), B1)._replace(
        elr=(B2,), unclean_shutdown_replicas=(B2,)
    )
    done = complete(with_isr(state, B1, B3), LIVE)
    assert (done.elr, done.unclean_shutdown_replicas) == ((), ())


def test_min_isr_is_limited_by_the_original_replicas_while_new_ones_are_copied() -> None:
    alone = PartitionState(B1, LeaderEpoch(0), 0, (B1,), (B1,))
    running = reassign(alone, (B1, B2, B3))
    assert running.replication_factor == 1
    left = compute_change(running, BrokerLiveness(frozenset((B2, B3))), Rules(insync_min=2)).state
    assert (left.isr, left.elr) == ((B1,), ())
    assert complete(with_isr(running, B1, B2, B3), LIVE).replication_factor == 3


def test_an_unclean_election_prefers_an_original_replica_to_one_that_is_being_added() -> None:
    running = with_isr(reassign(STATE, (B3, B2)), B1)
    elected = compute_change(running, BrokerLiveness(frozenset((B2, B3))), Rules(unclean=True))
    assert (elected.state.leader, elected.election) == (B2, Election.UNCLEAN)
    assert elected.state.is_reassigning


def test_the_isr_change_that_makes_the_target_in_sync_completes_it() -> None:
    running = with_isr(reassign(STATE, (B2, B3)), B1, B2)
    proposed = ProposedIsr(
        running.leader_epoch,
        running.partition_epoch,
        tuple((node, ANY_EPOCH) for node in (B1, B2, B3)),
    )
    decided = PartitionChanges({tp("a", 0): validate(running, B1, proposed, LIVE, Rules())})
    assert decided.complete_reassignments(LIVE, lambda _: 2) == [tp("a", 0)]
    assert decided.states[tp("a", 0)].replicas == (B2, B3)
    assert decided.elections == {tp("a", 0): Election.CLEAN}


def test_targets_are_checked() -> None:
    def check(*target: int, state: PartitionState = STATE, change: bool = True) -> None:
        check_target(state, target, [B1, B3], insync_min=1, allow_replication_factor_change=change)

    check(3, 1)
    check(3, 2)  # B2 is down, but has a replica.
    for target in ((), (3, 3), (3, 9)):
        with pytest.raises(InvalidReplicaAssignment):
            check(*target)
    with pytest.raises(InvalidReplicationFactor):
        check(3, change=False)
    check(3, state=reassign(STATE, (B1,)), change=False)


def test_reassignments_are_listed_by_topic_and_partition() -> None:
    running = reassign(STATE, (B3, B2))
    image = image_of(a=[STATE, running], b=[running])

    def found(asked: dict[str, list[int]] | None) -> list[TopicPartition]:
        return [each[0] for each in reassignments(image, asked) if each is not None]

    assert found(None) == [tp("a", 1), tp("b", 0)]
    assert found({"a": [0, 1, 7], "nothing": [0]}) == [tp("a", 1)]
    assert replicas_on(image, B3) == [tp("a", 1), tp("b", 0)]


def test_a_state_is_stored_with_its_reassignment_and_older_entries_are_read() -> None:
    running = reassign(STATE, (B3, B2))
    topic = image_of(a=[STATE, running, running._replace(elr=(B2,))]).topics["a"]
    (stored,) = encode_shards(topic).values()
    assert tuple(decode_shard(stored)) == topic.partitions
    assert stored.startswith(b"[[1,4,9,[1,2],[1,2]],")  # As before without a reassignment.
    (older,) = decode_shard(b"[[1,4,9,[1,2],[1,2],[1,[2],[]]]]")
    assert (older.is_recovering, older.elr, older.is_reassigning) == (True, (2,), False)


nodes = st.lists(st.sampled_from(list(LIVE)), min_size=1, max_size=4, unique=True).map(tuple)


@given(
    nodes, st.lists(nodes, min_size=1, max_size=4), st.sets(st.sampled_from(list(LIVE))), st.data()
)
def test_any_sequence_of_targets_can_be_completed_or_cancelled(
    original: tuple[NodeId, ...],
    targets: list[tuple[NodeId, ...]],
    live: set[NodeId],
    data: st.DataObject,
) -> None:
    state = PartitionState(original[0], LeaderEpoch(0), 0, original, original)
    for target in targets:
        before = state
        state = complete(reassign(state, target), live)
        assert state.partition_epoch >= before.partition_epoch
        assert state.leader_epoch >= before.leader_epoch
        if not set(before.replicas) <= set(state.replicas):
            assert state.leader_epoch > before.leader_epoch
        if not state.is_reassigning:
            original = state.replicas
        assert set(state.target_replicas) == set(target)
        assert set(state.original_replicas) == set(original)
        assert state.leader in state.isr
        assert set(state.isr) <= set(state.replicas)
        members = data.draw(st.sets(st.sampled_from(state.replicas))) | {state.leader}
        state = state._replace(isr=tuple(n for n in state.replicas if n in members))
    done = complete(state._replace(isr=state.replicas), LIVE)
    assert done.replicas == state.target_replicas
    if state.is_reassigning:
        undone = cancel(state._replace(isr=state.replicas), LIVE)
        assert set(undone.replicas) == set(original)
