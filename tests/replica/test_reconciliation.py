"""Diverged logs of leaders and followers are reconciled, whatever happened before.

A record is identified by its epoch and offset, so a log is a list of epochs.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.model.ids import NO_EPOCH, LeaderEpoch, Offset

REPLICAS = 3


@dataclass
class Log:
    records: list[int] = field(default_factory=list)
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)

    @property
    def end(self) -> Offset:
        return Offset(len(self.records))

    def lead(self, epoch: int, count: int) -> None:
        self.epochs.assign(LeaderEpoch(epoch), self.end)
        self.records += [epoch] * count

    def copy(self, leader: "Log", count: int) -> None:
        for epoch in leader.records[self.end : self.end + count]:
            self.epochs.assign(LeaderEpoch(epoch), self.end)
            self.records.append(epoch)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_end(self.end)


def common_prefix(one: list[int], other: list[int]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


def reconcile(follower: Log, leader: Log) -> int:
    """Reconcile as a follower's fetches do. Returns how many rounds it took."""
    rounds = 0
    while True:
        rounds += 1
        last = follower.epochs.latest
        if last == NO_EPOCH:
            assert not follower.records
            return rounds
        found = leader.epochs.divergence(last, follower.end, leader.end)
        if found is None:
            return rounds
        follower.truncate(follower.epochs.truncation_point(*found, follower.end))


step = st.tuples(
    st.integers(0, REPLICAS - 1),  # the next leader
    st.integers(0, 3),  # how many records it writes
    st.lists(st.tuples(st.integers(0, REPLICAS - 1), st.integers(0, 4)), max_size=3),  # who fetches
)


@given(st.lists(step, max_size=12))
def test_a_follower_keeps_exactly_what_it_has_in_common_with_its_leader(
    history: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    logs = [Log() for _ in range(REPLICAS)]
    for epoch, (leader_index, written, copies) in enumerate(history):
        leader = logs[leader_index]
        leader.lead(epoch, written)
        for follower_index, count in copies:
            follower = logs[follower_index]
            if follower is leader:
                continue
            common = common_prefix(follower.records, leader.records)
            epochs_before = len(follower.epochs.entries())
            rounds = reconcile(follower, leader)
            assert len(follower.records) == common
            assert rounds <= epochs_before + 1, "each round removes an epoch"
            follower.copy(leader, count)
            assert follower.records == leader.records[: follower.end]


def test_two_quick_fail_overs_leave_an_epoch_that_the_leader_has_never_seen() -> None:
    """Hazard 3 (KIP-279): asked for epoch 2, the leader returns 1, which it has further."""
    a, b = Log(), Log()
    a.lead(0, 3)
    b.copy(a, 3)
    b.lead(1, 2)
    a.copy(b, 0)
    a.lead(2, 1)
    b.lead(3, 1)
    assert b.epochs.divergence(LeaderEpoch(2), a.end, b.end) == (1, 5)
    reconcile(a, b)
    assert a.records == [0, 0, 0]


def test_an_epoch_in_which_nothing_was_written_is_forgotten() -> None:
    a, b = Log(), Log()
    a.lead(0, 2)
    b.copy(a, 1)
    b.lead(1, 0)
    a.lead(2, 1)
    reconcile(b, a)
    assert b.epochs.entries() == [(0, 0)]
    b.copy(a, 5)
    assert b.records == a.records == [0, 0, 2]
