"""The leader's view of its followers: the high watermark and the ISR."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_OFFSET, LeaderEpoch, NodeId, Offset
from suwi.replica.leader_state import (
    Expanding,
    LeaderState,
    Proposal,
    Shrinking,
    Stable,
    possible_members,
)

LAG_S = 10.0
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def a_state(*isr: int, replicas: tuple[int, ...] = (1, 2, 3), epoch: int = 5) -> PartitionState:
    return PartitionState(
        ONE,
        LeaderEpoch(7),
        epoch,
        tuple(NodeId(node) for node in replicas),
        tuple(NodeId(node) for node in isr),
    )


def lead(*isr: int, epoch_start: int = 0) -> LeaderState:
    return LeaderState(ONE, 100, a_state(*isr), epoch_start=Offset(epoch_start), now_s=0.0)


def progress(
    leader_state: LeaderState,
    node: int,
    end: int,
    *,
    leader_end: int,
    now_s: float,
    epoch: int = 200,
) -> bool:
    return leader_state.record_progress(
        NodeId(node),
        Offset(end),
        start_offset=Offset(0),
        broker_epoch=epoch,
        leader_end=Offset(leader_end),
        now_s=now_s,
    )


def committed(
    leader_state: LeaderState,
    end: int,
    *,
    now_s: float = 0.0,
    members_min: int = 1,
    live: tuple[int, ...] = (1, 2, 3),
) -> int:
    return leader_state.watermark(
        Offset(end),
        members_min=members_min,
        leader_end=Offset(end),
        now_s=now_s,
        lag_s_max=LAG_S,
        is_live=lambda node, _: node in live,
    )


def everyone(node: NodeId, epoch: int) -> bool:
    return True


def test_the_high_watermark_is_the_end_offset_of_the_slowest_in_sync_replica() -> None:
    leader_state = lead(1, 2, 3)
    progress(leader_state, 2, 8, leader_end=10, now_s=1)
    progress(leader_state, 3, 5, leader_end=10, now_s=1)
    assert committed(leader_state, 10, now_s=1) == 5


def test_an_isr_member_that_has_not_fetched_yet_holds_the_high_watermark_back() -> None:
    leader_state = lead(1, 2)
    assert committed(leader_state, 10) == NO_OFFSET


def test_a_leader_alone_in_the_isr_commits_alone() -> None:
    assert committed(lead(1), 10, live=(1,)) == 10


def test_below_min_insync_replicas_nothing_more_is_committed() -> None:
    assert committed(lead(1), 10, members_min=2, live=(1,)) == NO_OFFSET


def test_min_insync_replicas_cannot_ask_for_more_than_there_are_replicas() -> None:
    state = a_state(1, replicas=(1,))
    leader_state = LeaderState(ONE, 100, state, epoch_start=Offset(0), now_s=0.0)
    assert committed(leader_state, 10, members_min=2) == 10


def test_the_high_watermark_waits_for_a_follower_that_keeps_up_before_it_has_joined_the_isr() -> (
    None
):
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    assert committed(leader_state, 12, now_s=2) == 10
    assert committed(leader_state, 12, now_s=2 + LAG_S) == 12, "not for ever"


def test_the_high_watermark_does_not_wait_for_a_dead_follower_that_had_kept_up() -> None:
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    assert committed(leader_state, 12, now_s=2, live=(1, 3)) == 12


def test_a_follower_joins_only_past_the_watermark_and_the_start_of_the_epoch() -> None:
    leader_state = lead(1, epoch_start=20)
    progress(leader_state, 2, 15, leader_end=25, now_s=1)
    assert not leader_state.can_join_isr(TWO, Offset(10), everyone), "hazard 7"
    progress(leader_state, 2, 20, leader_end=25, now_s=2)
    assert leader_state.can_join_isr(TWO, Offset(10), everyone)
    assert not leader_state.can_join_isr(TWO, Offset(21), everyone)


def test_a_broker_that_is_not_live_does_not_join_the_isr() -> None:
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    assert not leader_state.can_join_isr(TWO, Offset(10), lambda node, epoch: False)


def test_a_proposal_has_the_broker_epoch_of_each_followers_last_fetch() -> None:
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1, epoch=222)
    assert leader_state.expand(TWO) == Proposal(LeaderEpoch(7), 5, ((ONE, 100), (TWO, 222)))


def test_a_fetch_with_an_older_broker_epoch_is_ignored() -> None:
    leader_state = lead(1, 2)
    progress(leader_state, 2, 3, leader_end=10, now_s=1, epoch=300)
    assert not progress(leader_state, 2, 10, leader_end=10, now_s=2, epoch=299)
    assert leader_state.followers[TWO].end_offset == 3


def test_a_restarted_follower_must_catch_up_again() -> None:
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1, epoch=300)
    progress(leader_state, 2, 4, leader_end=10, now_s=2, epoch=301)
    assert not leader_state.followers[TWO].is_caught_up(Offset(10), 2, LAG_S)


def test_the_high_watermark_waits_for_a_joining_follower_before_the_isr_is_confirmed() -> None:
    leader_state = lead(1, 3)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    progress(leader_state, 3, 12, leader_end=12, now_s=1)
    leader_state.expand(TWO)
    assert committed(leader_state, 12, now_s=1 + 2 * LAG_S) == 10


def test_the_high_watermark_waits_for_leaving_followers_until_the_shrink_is_confirmed() -> None:
    leader_state = lead(1, 2)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    leaving = leader_state.out_of_sync_replicas(Offset(15), 1 + 2 * LAG_S, LAG_S)
    assert leaving == {TWO}
    leader_state.shrink(leaving)
    assert committed(leader_state, 15, now_s=1 + 2 * LAG_S) == 10, "hazard 8"
    assert leader_state.confirm(a_state(1, epoch=6))
    assert committed(leader_state, 15, now_s=1 + 2 * LAG_S) == 15


def test_a_follower_that_always_fetches_what_was_there_last_time_keeps_up() -> None:
    leader_state = lead(1, 2)
    for second in range(1, 60):
        progress(leader_state, 2, 10 * second, leader_end=10 * (second + 1), now_s=float(second))
    assert not leader_state.out_of_sync_replicas(Offset(600), 60, LAG_S)


def test_a_follower_that_makes_progress_but_never_catches_up_lags() -> None:
    leader_state = lead(1, 2)
    for second in range(1, 60):
        progress(leader_state, 2, second, leader_end=1000 + second, now_s=float(second))
    assert leader_state.out_of_sync_replicas(Offset(1060), 60, LAG_S) == {TWO}


def test_an_idle_follower_that_has_everything_does_not_lag() -> None:
    leader_state = lead(1, 2)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    assert not leader_state.out_of_sync_replicas(Offset(10), 1000, LAG_S)


def test_a_final_refusal_restores_the_confirmed_isr() -> None:
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    proposal = leader_state.expand(TWO)
    leader_state.refused(proposal, is_final=True)
    assert leader_state.isr == Stable(frozenset({ONE}))
    assert leader_state.can_join_isr(TWO, Offset(10), everyone), "it may be tried again"


def test_after_a_refusal_that_is_not_final_the_high_watermark_waits_for_all_possible_members() -> (
    None
):
    leader_state = lead(1)
    progress(leader_state, 2, 10, leader_end=10, now_s=1)
    leader_state.refused(leader_state.expand(TWO), is_final=False)
    assert isinstance(leader_state.isr, Expanding)
    assert not leader_state.can_join_isr(TWO, Offset(10), everyone), (
        "not before the image has spoken"
    )
    assert leader_state.confirm(a_state(1, 2, epoch=6))
    assert leader_state.isr == Stable(frozenset({ONE, TWO}))


def test_a_state_with_an_older_partition_epoch_is_ignored() -> None:
    leader_state = lead(1, 2)
    assert not leader_state.confirm(a_state(1, epoch=5))
    assert leader_state.members == {ONE, TWO}


@pytest.mark.parametrize(
    ("isr", "possible"),
    [
        (Stable(frozenset({ONE})), {ONE}),
        (Expanding(frozenset({ONE}), TWO), {ONE, TWO}),
        (Shrinking(frozenset({ONE, TWO}), frozenset({TWO})), {ONE, TWO}),
    ],
)
def test_the_high_watermark_waits_for_every_possible_isr_member(
    isr: Stable | Expanding | Shrinking, possible: set[NodeId]
) -> None:
    assert possible_members(isr) == possible


class LeadershipMachine(RuleBasedStateMachine):
    """Any order of fetches, proposals and responses, compared with the confirmed ISR."""

    def __init__(self) -> None:
        super().__init__()
        self.leader_state = lead(1, 2, 3)
        self.truth = a_state(1, 2, 3)
        """The controller's state; it may or may not contain proposals in flight."""
        self.now_s = 0.0
        self.end = 0
        self.has = {TWO: 0, THREE: 0}
        self.high_watermark = 0
        self.proposal: Proposal | None = None

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.end += count
        self.advance()

    @rule(node=st.sampled_from([TWO, THREE]), part=st.integers(0, 3), wait_s=st.integers(0, 6))
    def fetch(self, node: NodeId, part: int, wait_s: int) -> None:
        self.now_s += wait_s
        self.has[node] = min(self.end, self.has[node] + part)
        progress(self.leader_state, node, self.has[node], leader_end=self.end, now_s=self.now_s)
        self.advance()
        joins = self.leader_state.can_join_isr(node, Offset(self.high_watermark), everyone)
        if joins and self.proposal is None:
            self.proposal = self.leader_state.expand(node)

    @rule(wait_s=st.integers(0, 15))
    def maybe_shrink_isr(self, wait_s: int) -> None:
        self.now_s += wait_s
        leaving = self.leader_state.out_of_sync_replicas(Offset(self.end), self.now_s, LAG_S)
        if leaving and self.proposal is None:
            self.proposal = self.leader_state.shrink(leaving)

    @precondition(lambda self: self.proposal is not None)
    @rule()
    def controller_applies_the_proposal_and_the_response_is_lost(self) -> None:
        assert self.proposal is not None
        if self.proposal.partition_epoch == self.truth.partition_epoch:
            self.truth = self.truth._replace(
                partition_epoch=self.truth.partition_epoch + 1,
                isr=tuple(node for node, _ in self.proposal.members),
            )

    @precondition(lambda self: self.proposal is not None)
    @rule()
    def response_arrives(self) -> None:
        assert self.proposal is not None
        if self.truth.partition_epoch > self.proposal.partition_epoch:
            self.leader_state.confirm(self.truth)
        else:
            self.leader_state.refused(self.proposal, is_final=True)
        self.proposal = None
        self.advance()

    def advance(self) -> None:
        self.high_watermark = max(
            self.high_watermark, committed(self.leader_state, self.end, now_s=self.now_s)
        )

    @invariant()
    def every_confirmed_isr_member_has_what_is_committed(self) -> None:
        for node in self.truth.isr:
            if node != ONE:
                assert self.has[node] >= self.high_watermark

    @invariant()
    def the_high_watermark_does_not_pass_the_end_offset(self) -> None:
        assert self.high_watermark <= self.end


TestLeadershipMachine = LeadershipMachine.TestCase
