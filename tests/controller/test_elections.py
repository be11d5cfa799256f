"""Who leads and who is in sync when brokers come and go."""

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


def settled(
    state: PartitionState, liveness: BrokerLiveness, *, unclean: bool = False, insync_min: int = 1
) -> PartitionChange:
    return compute_change(state, liveness, Rules(unclean, insync_min))


# -- deaths --------------------------------------------------------------------------------------


def test_when_the_leader_dies_the_first_in_sync_replica_in_assignment_order_leads() -> None:
    state, election = settled(partition(1, (1, 3, 2)), BrokerLiveness(nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 10)
    assert state.isr == (3, 2)
    assert election is Election.CLEAN


def test_a_dead_follower_leaves_the_in_sync_set_and_the_leader_epoch_stays() -> None:
    state, election = settled(partition(1), BrokerLiveness(nodes(1, 2)))
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 4, 10)
    assert state.isr == (1, 2)
    assert election is Election.NONE


def test_a_live_replica_that_is_not_in_sync_is_not_elected() -> None:
    state, election = settled(partition(1, (1,)), BrokerLiveness(nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.isr) == (NO_NODE, 5, (1,))
    assert election is Election.NONE


def test_the_last_in_sync_replicas_stay_when_they_die_together() -> None:
    state, _ = settled(partition(1, (1, 2)), BrokerLiveness(nodes(3)))
    assert (state.leader, state.isr) == (NO_NODE, (1, 2))
    state, election = settled(state, BrokerLiveness(nodes(2, 3), restarted=nodes(2)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 6, (2,))
    assert election is Election.CLEAN


def test_a_partition_without_a_leader_does_not_change_for_ever() -> None:
    state, _ = settled(partition(1, (1,)), BrokerLiveness(nodes(2, 3)))
    assert settled(state, BrokerLiveness(nodes(2))).state is state


def test_a_partition_that_nobody_touched_does_not_change() -> None:
    state = partition(1)
    assert settled(state, BrokerLiveness(nodes(1, 2, 3))).state is state


# -- births --------------------------------------------------------------------------------------


def test_a_returning_replica_leads_again_in_a_new_epoch() -> None:
    left = partition(NO_NODE, (1,))
    state, election = settled(left, BrokerLiveness(nodes(1, 2), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 5, (1,))
    assert election is Election.CLEAN


def test_a_leader_that_is_back_before_its_death_was_noticed_loses_the_lead() -> None:
    state, _ = settled(partition(1), BrokerLiveness(nodes(1, 2, 3), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))


def test_a_lonely_leader_that_is_back_leads_in_a_new_epoch() -> None:
    state, election = settled(partition(1, (1,)), BrokerLiveness(nodes(1, 2), restarted=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 5, (1,))
    assert election is Election.CLEAN


def test_a_follower_that_begins_a_new_life_has_to_catch_up_before_it_is_in_sync() -> None:
    state, _ = settled(partition(1), BrokerLiveness(nodes(1, 2, 3), restarted=nodes(2)))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 4, (1, 3))


def test_when_all_begin_a_new_life_at_once_all_stay_in_sync() -> None:
    state, _ = settled(partition(2, (2, 3)), BrokerLiveness(nodes(2, 3), restarted=nodes(2, 3)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))


# -- fenced brokers ------------------------------------------------------------------------------


def test_a_fenced_leader_gives_way_where_another_is_in_sync() -> None:
    state, election = settled(partition(1), BrokerLiveness(nodes(2, 3), fenced=nodes(1)))
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2, 3))
    assert election is Election.CLEAN


def test_a_fenced_leader_that_is_alone_in_sync_is_not_demoted() -> None:
    state = partition(1, (1,))
    liveness = BrokerLiveness(nodes(2, 3), fenced=nodes(1))
    assert settled(state, liveness).state is state
    assert settled(state, liveness, unclean=True).state is state


def test_once_its_session_is_over_an_unclean_election_is_considered() -> None:
    state, election = settled(partition(1, (1,)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert (state.leader, state.leader_epoch, state.isr) == (2, 5, (2,))
    assert (state.is_recovering, state.unclean_epoch) == (True, 5)
    assert election is Election.UNCLEAN


def test_which_epoch_began_uncleanly_is_remembered_through_clean_elections() -> None:
    """Whoever returns later still has to know that what it gives up may have been committed."""
    before = partition(2, (2, 3))._replace(unclean_epoch=LeaderEpoch(3))
    state, election = settled(before, BrokerLiveness(nodes(1, 3)), unclean=True)
    assert (election, state.leader_epoch, state.unclean_epoch) == (Election.CLEAN, 5, 3)
    assert with_members(state, ALL, Rules()).unclean_epoch == 3
    preferred = elect_preferred(state._replace(isr=ALL), nodes(1, 3))
    assert preferred is not None
    assert (preferred.leader_epoch, preferred.unclean_epoch) == (6, 3)
    leaderless, _ = settled(state, BrokerLiveness(nodes(4)))
    assert (leaderless.leader, leaderless.unclean_epoch) == (NO_NODE, 3)


def test_an_unclean_election_is_not_made_while_a_member_is_in_sync() -> None:
    state, election = settled(partition(1, (1, 3)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert (state.leader, state.isr, state.is_recovering) == (3, (3,), False)
    assert election is Election.CLEAN


def test_an_unclean_election_prefers_who_holds_all_that_is_committed() -> None:
    state, _ = settled(partition(1, (1,), elr=(3,)), BrokerLiveness(nodes(2, 3)), unclean=True)
    assert state.leader == 3


def test_without_any_live_replica_there_is_no_leader_however_unclean() -> None:
    state, _ = settled(partition(1, (1,)), BrokerLiveness(nodes(4)), unclean=True)
    assert (state.leader, state.isr, state.is_recovering) == (NO_NODE, (1,), False)


# -- below the minimum (KIP-966) -----------------------------------------------------------------


def test_who_leaves_below_the_minimum_may_still_hold_all_that_is_committed() -> None:
    state, _ = settled(partition(1, (1, 2)), BrokerLiveness(nodes(1)), insync_min=2)
    assert (state.isr, state.elr) == ((1,), (2,))


def test_who_leaves_above_the_minimum_may_not() -> None:
    state, _ = settled(partition(1), BrokerLiveness(nodes(1, 2)), insync_min=2)
    assert (state.isr, state.elr) == ((1, 2), ())


def test_a_minimum_above_the_number_of_replicas_means_all_of_them() -> None:
    lonely = partition(1, (1,), replicas=(1,))
    state, _ = settled(lonely, BrokerLiveness(nodes(1), restarted=nodes(1)), insync_min=2)
    assert (state.leader, state.isr, state.elr) == (1, (1,), ())


def test_an_eligible_replica_does_not_lead_while_an_in_sync_one_may_come_back() -> None:
    state, _ = settled(partition(1, (1,), elr=(2,)), BrokerLiveness(nodes(2)), insync_min=2)
    assert (state.leader, state.isr, state.elr) == (NO_NODE, (1,), (2,))


# -- after a power loss --------------------------------------------------------------------------


def test_a_suspect_leaves_the_in_sync_set_that_has_a_member_which_is_not() -> None:
    state, _ = settled(
        partition(2),
        BrokerLiveness(nodes(1, 2, 3), restarted=nodes(1), unclean_shutdown_replicas=nodes(1)),
    )
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (2, (2, 3), ())


def test_a_lonely_suspect_waits_for_nobody() -> None:
    back = BrokerLiveness(nodes(1), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, election = settled(partition(1, (1,)), back)
    assert (state.leader, state.leader_epoch, state.isr, state.unclean_shutdown_replicas) == (
        1,
        5,
        (1,),
        (),
    )
    assert election is Election.SUSPECT


def test_a_suspect_waits_for_members_that_have_not_come_back() -> None:
    left = partition(NO_NODE, (1, 2))
    state, _ = settled(
        left, BrokerLiveness(nodes(1), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    )
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (NO_NODE, (1, 2), (1,))
    # Its next life does not make it good, and the other one has everything.
    state, _ = settled(state, BrokerLiveness(nodes(), restarted=nodes()))
    state, _ = settled(state, BrokerLiveness(nodes(1), restarted=nodes(1)))
    assert (state.leader, state.unclean_shutdown_replicas) == (NO_NODE, (1,))
    state, election = settled(state, BrokerLiveness(nodes(1, 2), restarted=nodes(2)))
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (2, (2,), ())
    assert election is Election.CLEAN


def test_of_suspects_that_are_all_back_the_one_with_the_longest_log_leads() -> None:
    left = partition(NO_NODE, (1, 2, 3), unclean_shutdown_replicas=(1, 3))
    state, election = settled(
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


def test_nothing_is_decided_before_all_positions_are_known() -> None:
    state = partition(NO_NODE, (1, 2), unclean_shutdown_replicas=(1, 2))
    known = {B1: Position(LeaderEpoch(3), Offset(100))}
    assert elect_longest_log(state, ALL, known).state is state
    known[B2] = known[B1]
    assert elect_longest_log(state, (B1,), known).state is state
    assert elect_longest_log(state, ALL, known).state.leader == 1


def test_hazard_12_a_lonely_suspect_gives_way_to_one_that_left_before_it() -> None:
    """Nothing was committed while one replica was too few: the other holds everything."""
    lonely = partition(NO_NODE, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 2), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, election = settled(lonely, back, insync_min=2)
    assert (state.leader, state.isr, state.unclean_shutdown_replicas, state.elr) == (
        2,
        (2,),
        (1,),
        (1,),
    )
    assert election is Election.CLEAN


def test_a_lonely_suspect_waits_for_one_that_left_before_it() -> None:
    lonely = partition(NO_NODE, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 3), restarted=nodes(1), unclean_shutdown_replicas=nodes(1))
    state, _ = settled(lonely, back, insync_min=2)
    assert (state.leader, state.isr, state.unclean_shutdown_replicas) == (NO_NODE, (1,), (1,))
    state, election = settled(state, BrokerLiveness(nodes(1, 2), restarted=nodes(2)), insync_min=2)
    assert (state.leader, state.isr) == (2, (2,))
    assert election is Election.CLEAN


def test_an_eligible_replica_that_comes_back_from_a_power_loss_cannot_lead_by_itself() -> None:
    lonely = partition(1, (1,), elr=(2,))
    back = BrokerLiveness(nodes(1, 2), restarted=nodes(2), unclean_shutdown_replicas=nodes(2))
    state, _ = settled(lonely, back, insync_min=2)
    assert (state.leader, state.leader_epoch, state.unclean_shutdown_replicas) == (1, 4, (2,))
    state, election = settled(state, BrokerLiveness(nodes(2)), insync_min=2)
    assert (state.leader, state.isr) == (NO_NODE, (1,))
    assert election is Election.NONE


def test_a_suspect_is_compared_with_a_leader_that_had_lost_power_unnoticed() -> None:
    """The power went in both machines; one is back before the session of the other is over."""
    state = partition(1, (1, 2))
    state, _ = settled(
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
    state, _ = settled(state, BrokerLiveness(nodes(2)), insync_min=2)
    state, _ = settled(
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


def test_a_suspect_that_caught_up_is_one_no_more() -> None:
    state = partition(1, (1,), elr=(2, 3), unclean_shutdown_replicas=(2, 3))
    state = with_members(state, (NodeId(1), NodeId(2)), Rules(insync_min=3))
    assert (state.isr, state.elr, state.unclean_shutdown_replicas) == ((1, 2), (3,), (3,))
    state = with_members(state, (NodeId(1), NodeId(2), NodeId(3)), Rules(insync_min=3))
    assert (state.elr, state.unclean_shutdown_replicas) == ((), ())


def test_a_suspect_that_holds_nothing_of_a_partition_does_not_matter_to_it() -> None:
    state = partition(1, (1, 2))
    back = BrokerLiveness(nodes(1, 2, 3), restarted=nodes(3), unclean_shutdown_replicas=nodes(3))
    assert settled(state, back).state is state


# -- preferred leaders ---------------------------------------------------------------------------


def test_the_preferred_leader_gets_its_partition_back_in_a_new_epoch() -> None:
    state = elect_preferred(partition(2), ALL)
    assert state is not None
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 5, 10)
    assert state.isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("state", "live"),
    [
        pytest.param(partition(1), ALL, id="leads already"),
        pytest.param(partition(2, (2, 3)), ALL, id="not in sync"),
        pytest.param(partition(2), (B2, B3), id="dead or fenced"),
        pytest.param(partition(NO_NODE, (1,)), (B2, B3), id="no leader at all"),
    ],
)
def test_the_preferred_leader_does_not_get_it_when_it_cannot_or_need_not(
    state: PartitionState, live: tuple[NodeId, ...]
) -> None:
    assert elect_preferred(state, live) is None


# -- the census ----------------------------------------------------------------------------------


def test_a_census_tells_who_lives_who_is_fenced_and_whose_life_began() -> None:
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
