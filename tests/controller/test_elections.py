"""Leader and ISR of a partition when brokers fail and return (hazard Z16)."""

import pytest

from suwi.controller.elections import (
    BrokerLiveness,
    Election,
    PartitionChange,
    Position,
    Rules,
    awaits_positions,
    compute_change,
    elect_longest_log,
    elect_preferred,
    with_members,
)
from suwi.metadata.image import BrokerInfo, PartitionState
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset

B1, B2, B3 = NodeId(1), NodeId(2), NodeId(3)
ALL = (B1, B2, B3)


def nodes(*ids: int) -> frozenset[NodeId]:
    return frozenset(NodeId(node) for node in ids)


def partition(
    leader: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
    unclean_shutdown_replicas: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
) -> PartitionState:
    return PartitionState(
        NodeId(leader),
        LeaderEpoch(4),
        9,
        tuple(map(NodeId, replicas)),
        tuple(map(NodeId, isr)),
        elr=tuple(map(NodeId, elr)),
        unclean_shutdown_replicas=tuple(map(NodeId, unclean_shutdown_replicas)),
    )


def changed(
    state: PartitionState, liveness: BrokerLiveness, *, unclean: bool = False, insync_min: int = 1
) -> PartitionChange:
    return compute_change(state, liveness, Rules(unclean, insync_min))


# -- failures ------------------------------------------------------------------------------------


def test_after_a_leader_failure_the_first_in_sync_replica_in_assignment_order_leads() -> None:
    state, election = changed(partition(1, (1, 3, 2)), BrokerLiveness(nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 10)
    assert state.isr == (3, 2)
    assert election is Election.CLEAN


def test_a_failed_follower_leaves_the_isr_without_a_new_leader_epoch() -> None:
    state, election = changed(partition(1), BrokerLiveness(nodes(1, 2)))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 4, 10)
    assert state.isr == (1, 2)
    assert election is Election.NONE


def test_a_live_replica_that_is_not_in_sync_is_not_elected() -> None:
    state, election = changed(partition(1, (1,)), BrokerLiveness(nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.isr) == (NO_NODE, 5, (1,))
    assert election is Election.NONE


def test_the_last_in_sync_replicas_stay_in_the_isr_when_they_fail_together() -> None:
    state, _ = changed(partition(1, (1, 2)), BrokerLiveness(nodes(3)))
    assert (state.leader, state.isr) == (NO_NODE, (1, 2))
    state, election = changed(state, BrokerLiveness(nodes(2, 3), restarted=nodes(2)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 6, (2,))
    assert election is Election.CLEAN


def test_a_partition_without_a_leader_changes_only_once() -> None:
    state, _ = changed(partition(1, (1,)), BrokerLiveness(nodes(2, 3)))
    assert changed(state, BrokerLiveness(nodes(2))).state is state


def test_a_partition_of_unaffected_brokers_does_not_change() -> None:
    state = partition(1)
    assert changed(state, BrokerLiveness(nodes(1, 2, 3))).state is state


# -- restarts ------------------------------------------------------------------------------------


def test_a_returning_replica_leads_again_in_a_new_epoch() -> None:
    left = partition(NO_NODE, (1,))
    state, election = changed(left, BrokerLiveness(nodes(1, 2), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 5, (1,))
    assert election is Election.CLEAN


def test_a_restarted_leader_is_replaced_even_if_its_failure_was_not_noticed() -> None:
    state, _ = changed(partition(1), BrokerLiveness(nodes(1, 2, 3), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))


def test_the_only_in_sync_replica_leads_in_a_new_epoch_after_a_restart() -> None:
    state, election = changed(partition(1, (1,)), BrokerLiveness(nodes(1, 2), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 5, (1,))
    assert election is Election.CLEAN


def test_a_restarted_follower_has_to_catch_up_before_it_is_in_sync() -> None:
    state, _ = changed(partition(1), BrokerLiveness(nodes(1, 2, 3), restarted=nodes(2)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 4, (1, 3))


def test_if_all_replicas_restart_at_once_all_stay_in_sync() -> None:
    state, _ = changed(partition(2, (2, 3)), BrokerLiveness(nodes(2, 3), restarted=nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))


# -- fenced brokers ------------------------------------------------------------------------------


def test_a_fenced_leader_is_replaced_if_another_replica_is_in_sync() -> None:
    state, election = changed(partition(1), BrokerLiveness(nodes(2, 3), fenced=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))
    assert election is Election.CLEAN


def test_a_fenced_leader_that_is_the_only_in_sync_replica_stays_leader() -> None:
    state = partition(1, (1,))
    liveness = BrokerLiveness(nodes(2, 3), fenced=nodes(1))
    assert changed(state, liveness).state is state
    assert changed(state, liveness, unclean=True).state is state


def test_an_unclean_election_is_allowed_once_the_session_has_ended() -> None:
    state, election = changed(partition(1, (1,)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2,))
    assert (state.is_recovering, state.unclean_epoch) == (True, 5)
    assert election is Election.UNCLEAN


def test_the_unclean_epoch_is_kept_through_clean_elections() -> None:
    """A replica that returns later must know that records it truncates may have been committed."""
    before = partition(2, (2, 3))._replace(unclean_epoch=LeaderEpoch(3))
    state, election = changed(before, BrokerLiveness(nodes(1, 3)), unclean=True)
    assert (election, state.leader_epoch, state.unclean_epoch) == (Election.CLEAN, 5, 3)
    assert with_members(state, ALL, Rules()).unclean_epoch == 3
    preferred = elect_preferred(state._replace(isr=ALL), nodes(1, 3))
    assert preferred is not None
    assert (preferred.leader_epoch, preferred.unclean_epoch) == (6, 3)
    leaderless, _ = changed(state, BrokerLiveness(nodes(4)))
    assert (leaderless.leader, leaderless.unclean_epoch) == (NO_NODE, 3)


def test_no_unclean_election_while_a_live_replica_is_in_sync() -> None:
    state, election = changed(partition(1, (1, 3)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert (state.leader, state.isr, state.is_recovering) == (3, (3,), False)
    assert election is Election.CLEAN


def test_an_unclean_election_prefers_replicas_with_all_committed_records() -> None:
    state, _ = changed(partition(1, (1,), elr=(3,)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert state.leader == 3


def test_without_a_live_replica_there_is_no_unclean_election() -> None:
    state, _ = changed(partition(1, (1,)), BrokerLiveness(nodes(4)), unclean=True)
    assert (state.leader, state.isr, state.is_recovering) == (NO_NODE, (1,), False)


# -- below the minimum (KIP-966) -----------------------------------------------------------------


def test_a_replica_that_leaves_below_min_isr_joins_the_elr() -> None:
    state, _ = changed(partition(1, (1, 2)), BrokerLiveness(nodes(1)), insync_min=2)
    assert (state.isr, state.elr) == ((1,), (2,))


def test_a_replica_that_leaves_above_min_isr_does_not_join_the_elr() -> None:
    state, _ = changed(partition(1), BrokerLiveness(nodes(1, 2)), insync_min=2)
    assert (state.isr, state.elr) == ((1, 2), ())


def test_a_min_isr_above_the_replication_factor_means_all_replicas() -> None:
    single = partition(1, (1,), replicas=(1,))
    state, _ = changed(single, BrokerLiveness(nodes(1), restarted=nodes(1)), insync_min=2)
    assert (state.leader, state.isr, state.elr) == (1, (1,), ())


def test_an_elr_member_does_not_lead_while_an_in_sync_replica_may_return() -> None:
    state, _ = changed(partition(1, (1,), elr=(2,)), BrokerLiveness(nodes(2)), insync_min=2)
    assert (state.leader, state.isr, state.elr) == (NO_NODE, (1,), (2,))


# -- after a power loss --------------------------------------------------------------------------


def test_a_replica_with_an_unclean_shutdown_leaves_the_isr_if_others_have_none() -> None:
    state, _ = changed(
        partition(2),
        BrokerLiveness(nodes(1, 2, 3), restarted=nodes(1), unclean_shutdown_replicas=nodes(1)),
    )
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (2, (2, 3), ())


def test_a_single_replica_with_an_unclean_shutdown_leads_at_once() -> None:
    back = BrokerLiveness(nodes(1), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, election = changed(partition(1, (1,)), back)
    assert (state.leader, state.leader_epoch, state.isr, state.unclean_shutdown_replicas) == (
        1,
        5,
        (1,),
        (),
    )
    assert election is Election.SUSPECT


def test_a_replica_with_an_unclean_shutdown_waits_for_the_other_isr_members() -> None:
    left = partition(NO_NODE, (1, 2))
    state, _ = changed(
        left, BrokerLiveness(nodes(1), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    )
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (NO_NODE, (1, 2), (1,))
    # Its restart does not undo the unclean shutdown, and the other replica has all records.
    state, _ = changed(state, BrokerLiveness(nodes(), restarted=nodes()))
    state, _ = changed(state, BrokerLiveness(nodes(1), restarted=nodes(1)))
    assert (state.leader, state.unclean_shutdown_replicas) == (NO_NODE, (1,))
    state, election = changed(state, BrokerLiveness(nodes(1, 2), restarted=nodes(2)))
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (2, (2,), ())
    assert election is Election.CLEAN


def test_if_all_replicas_had_an_unclean_shutdown_the_longest_log_leads() -> None:
    left = partition(NO_NODE, (1, 2, 3), unclean_shutdown_replicas=(1, 3))
    state, election = changed(
        left, BrokerLiveness(nodes(1, 2, 3), restarted=nodes(2), unclean_shutdown_replicas=nodes(2))
    )
    assert (state.leader, state.unclean_shutdown_replicas) == (NO_NODE, (1, 2, 3))
    assert election is Election.NONE
    assert awaits_positions(state, ALL)
    positions = {
        B1: Position(LeaderEpoch(3), Offset(100)),
        B2: Position(LeaderEpoch(4), Offset(80)),
        B3: Position(LeaderEpoch(4), Offset(70)),
    }
    state, election = elect_longest_log(state, ALL, positions)
    assert (state.leader, state.leader_epoch, state.isr, state.unclean_shutdown_replicas) == (
        2,
        5,
        (2,),
        (),
    )
    assert election is Election.SUSPECT


def test_no_leader_is_elected_before_all_positions_are_known() -> None:
    state = partition(NO_NODE, (1, 2), unclean_shutdown_replicas=(1, 2))
    known = {B1: Position(LeaderEpoch(3), Offset(100))}
    assert elect_longest_log(state, ALL, known).state is state
    known[B2] = known[B1]
    assert elect_longest_log(state, (B1,), known).state is state
    assert elect_longest_log(state, ALL, known).state.leader == 1


def test_an_unclean_election_takes_the_longest_of_the_logs_that_are_known() -> None:
    state = partition(NO_NODE, (1, 2, 3), unclean_shutdown_replicas=(1, 2, 3))
    assert elect_longest_log(state, ALL, {}, unclean=True).state is state
    known = {B1: Position(LeaderEpoch(3), Offset(80)), B3: Position(LeaderEpoch(3), Offset(90))}
    elected, election = elect_longest_log(state, ALL, known, unclean=True)
    assert (elected.leader, elected.isr, election) == (3, (3,), Election.UNCLEAN)
    assert elected.is_recovering
    known[B2] = Position(LeaderEpoch(2), Offset(99))
    elected, election = elect_longest_log(state, ALL, known, unclean=True)
    assert (elected.leader, election) == (3, Election.SUSPECT)


def test_hazard_12_after_an_unclean_shutdown_an_elr_member_is_elected() -> None:
    """Nothing was committed with a single replica in the ISR: the other one has all that was."""
    single = partition(NO_NODE, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 2), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, election = changed(single, back, insync_min=2)
    assert (state.leader, state.isr, state.unclean_shutdown_replicas, state.elr) == (
        2,
        (2,),
        (1,),
        (1,),
    )
    assert election is Election.CLEAN


def test_after_an_unclean_shutdown_a_replica_waits_for_the_elr_member() -> None:
    single = partition(NO_NODE, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 3), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, _ = changed(single, back, insync_min=2)
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (NO_NODE, (1,), (1,))
    state, election = changed(state, BrokerLiveness(nodes(1, 2), restarted=nodes(2)), insync_min=2)
    assert (state.leader, state.isr) == (2, (2,))
    assert election is Election.CLEAN


def test_an_elr_member_with_an_unclean_shutdown_is_not_elected_alone() -> None:
    single = partition(1, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 2), restarted=nodes(2), unclean_shutdown_replicas=nodes(2))
    state, _ = changed(single, back, insync_min=2)
    assert (state.leader, state.leader_epoch, state.unclean_shutdown_replicas) == (1, 4, (2,))
    state, election = changed(state, BrokerLiveness(nodes(2)), insync_min=2)
    assert (state.leader, state.isr) == (NO_NODE, (1,))
    assert election is Election.NONE


def test_positions_are_compared_with_a_leader_whose_power_loss_was_not_noticed() -> None:
    """Both machines lost power; one is back before the session of the other has ended."""
    state = partition(1, (1, 2))
    state, _ = changed(
        state,
        BrokerLiveness(nodes(1, 2), restarted=nodes(2), unclean_shutdown_replicas=nodes(2)),
        insync_min=2,
    )
    assert (state.leader, state.isr, state.elr, state.unclean_shutdown_replicas) == (
        1,
        (1,),
        (2,),
        (2,),
    )
    state, _ = changed(state, BrokerLiveness(nodes(2)), insync_min=2)
    state, _ = changed(
        state,
        BrokerLiveness(nodes(1, 2), restarted=nodes(1), unclean_shutdown_replicas=nodes(1)),
        insync_min=2,
    )
    assert state.leader == NO_NODE
    positions = {
        NodeId(1): Position(LeaderEpoch(3), Offset(90)),
        NodeId(2): Position(LeaderEpoch(3), Offset(100)),
    }
    state, election = elect_longest_log(state, nodes(1, 2), positions)
    assert (state.leader, state.isr, election) == (2, (2,), Election.SUSPECT)


def test_an_unclean_shutdown_is_cleared_when_the_replica_is_in_sync_again() -> None:
    state = partition(1, (1,), elr=(2, 3), unclean_shutdown_replicas=(2, 3))
    state = with_members(state, (NodeId(1), NodeId(2)), Rules(insync_min=3))
    assert (state.isr, state.elr, state.unclean_shutdown_replicas) == ((1, 2), (3,), (3,))
    state = with_members(state, (NodeId(1), NodeId(2), NodeId(3)), Rules(insync_min=3))
    assert (state.elr, state.unclean_shutdown_replicas) == ((), ())


def test_an_unclean_shutdown_outside_isr_and_elr_is_ignored() -> None:
    state = partition(1, (1, 2))
    back = BrokerLiveness(nodes(1, 2, 3), restarted=nodes(3), unclean_shutdown_replicas=nodes(3))
    assert changed(state, back).state is state


# -- preferred leaders ---------------------------------------------------------------------------


def test_the_preferred_leader_is_elected_with_a_new_epoch() -> None:
    state = elect_preferred(partition(2), ALL)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 5, 10)
    assert state.isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("state", "live"),
    [
        pytest.param(partition(1), ALL, id="already leads"),
        pytest.param(partition(2, (2, 3)), ALL, id="not in sync"),
        pytest.param(partition(2), (B2, B3), id="unregistered or fenced"),
        pytest.param(partition(NO_NODE, (1,)), (B2, B3), id="no leader at all"),
    ],
)
def test_the_preferred_leader_is_not_elected_if_it_leads_or_cannot_lead(
    state: PartitionState, live: tuple[NodeId, ...]
) -> None:
    assert elect_preferred(state, live) is None


# -- broker liveness -----------------------------------------------------------------------------


def test_broker_liveness_has_live_fenced_and_restarted_brokers() -> None:
    def broker(node: int, epoch: int) -> BrokerInfo:
        return BrokerInfo(NodeId(node), (), None, epoch)

    before = {B1: broker(1, 10), B2: broker(2, 20), NodeId(4): broker(4, 40)}
    after = {
        B1: broker(1, 11),
        B2: broker(2, 20)._replace(fenced=True),
        B3: broker(3, 30),
    }
    liveness = BrokerLiveness.of(before, after, unclean_shutdown_replicas=[B2, B3])
    assert liveness == BrokerLiveness(
        nodes(1, 3), nodes(2), restarted=nodes(1, 3), unclean_shutdown_replicas=nodes(3)
    )
