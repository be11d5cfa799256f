"""What the leader of a partition knows of its followers, and what follows from it. Pure.

Followers report with every fetch (`record_progress`). `watermark` says what is committed, `joins`
and `laggards` who should be in sync and is not, or the other way round; `expand` and `shrink` make
a proposal of it, and the controller's word arrives at `confirm` or `refused`.
Invariant: the watermark never passes the end of a replica that may be in sync.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_OFFSET, LeaderEpoch, NodeId, Offset
from suwi.replica.isr import Expanding, Isr, Shrinking, Stable, possible_members, proposed_members

UNKNOWN_EPOCH = -1

IsLive: TypeAlias = Callable[[NodeId, int], bool]
"""Whether a broker is in service, in this life of it (by its epoch; UNKNOWN_EPOCH: in any)."""


@dataclass(slots=True)
class Follower:
    """What one follower has shown of itself since this leadership began."""

    end_offset: Offset = NO_OFFSET
    """It has everything below; NO_OFFSET until its first fetch."""
    start_offset: Offset = NO_OFFSET
    broker_epoch: int = UNKNOWN_EPOCH
    caught_up_s: float = float("-inf")
    """When it last had all that the leader had."""
    asked_s: float = float("-inf")
    leader_end: Offset = NO_OFFSET
    """Where the leader's log ended when it last asked."""
    watermark_told: Offset = NO_OFFSET
    start_told: Offset = NO_OFFSET

    def is_caught_up(self, leader_end: Offset, now_s: float, lag_s_max: float) -> bool:
        return self.end_offset == leader_end or now_s - self.caught_up_s <= lag_s_max


@dataclass(frozen=True, slots=True)
class Proposal:
    """An in-sync set for the controller to confirm, on top of exactly this partition epoch."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    members: tuple[tuple[NodeId, int], ...]
    """With their broker epochs (KIP-903): nobody is let in who has begun a new life since."""


class LeaderState:
    """One leader epoch of one partition, seen by its leader."""

    def __init__(
        self,
        node_id: NodeId,
        broker_epoch: int,
        state: PartitionState,
        *,
        epoch_start: Offset,
        now_s: float,
    ) -> None:
        assert state.leader == node_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr: Isr = Stable(frozenset(state.isr))
        self.epoch_start = epoch_start
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._is_asking = False
        self.followers = {
            node: Follower(caught_up_s=now_s if node in state.isr else float("-inf"))
            for node in state.replicas
            if node != node_id
        }

    @property
    def members(self) -> frozenset[NodeId]:
        """The in-sync replicas that the controller has confirmed."""
        return self.isr.members

    # -- progress ------------------------------------------------------------------------------

    def record_progress(
        self,
        node: NodeId,
        end_offset: Offset,
        *,
        start_offset: Offset,
        broker_epoch: int,
        leader_end: Offset,
        now_s: float,
    ) -> bool:
        """A follower fetches from `end_offset` on: that is its acknowledgement of all before.

        Returns whether it counts: word from an earlier life of the follower does not.
        """
        follower = self.followers[node]
        if broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch > follower.broker_epoch >= 0:
            # Hazard 10: what it had in its last life it may have lost.
            follower.caught_up_s = float("-inf")
            follower.leader_end = NO_OFFSET
        if end_offset >= leader_end:
            follower.caught_up_s = max(follower.caught_up_s, now_s)
        elif NO_OFFSET < follower.leader_end <= end_offset:
            follower.caught_up_s = max(follower.caught_up_s, follower.asked_s)
        follower.end_offset = end_offset
        follower.start_offset = start_offset
        follower.broker_epoch = broker_epoch
        follower.leader_end = leader_end
        follower.asked_s = now_s
        return True

    def watermark(
        self,
        own_end: Offset,
        *,
        members_min: int,
        leader_end: Offset,
        now_s: float,
        lag_s_max: float,
        is_live: IsLive,
    ) -> Offset:
        """What is committed, as far as can be said now: NO_OFFSET where nothing new may be.

        `own_end` is what the leader itself counts as safe. A follower that keeps up is waited for
        even before it has joined: else it could never reach a watermark that always moves on.
        """
        if len(self.members) < min(members_min, len(self.replicas)):
            return NO_OFFSET  # Hazard 12: too few hold it to call it committed.
        waited_for = possible_members(self.isr)
        committed = own_end
        for node, follower in self.followers.items():
            if node in waited_for or (
                follower.end_offset != NO_OFFSET
                and follower.is_caught_up(leader_end, now_s, lag_s_max)
                and is_live(node, follower.broker_epoch)
            ):
                committed = min(committed, follower.end_offset)
        return committed

    # -- who is in sync ------------------------------------------------------------------------

    def can_join_isr(self, node: NodeId, high_watermark: Offset, is_live: IsLive) -> bool:
        """Whether a follower should be in sync but is not yet."""
        follower = self.followers[node]
        return (
            isinstance(self.isr, Stable)
            and not self._is_asking
            and node not in self.isr.members
            # Hazard 7: the watermark of a new leader may lag behind what its epoch began with.
            and follower.end_offset >= max(high_watermark, self.epoch_start)
            and is_live(node, follower.broker_epoch)
        )

    def out_of_sync_replicas(
        self, leader_end: Offset, now_s: float, lag_s_max: float
    ) -> frozenset[NodeId]:
        """Members that have not caught up for too long."""
        if not isinstance(self.isr, Stable) or self._is_asking:
            return frozenset()
        return frozenset(
            node
            for node, follower in self.followers.items()
            if node in self.isr.members and not follower.is_caught_up(leader_end, now_s, lag_s_max)
        )

    def expand(self, node: NodeId) -> Proposal:
        assert isinstance(self.isr, Stable)
        self.isr = Expanding(self.isr.members, node)
        return self._propose()

    def shrink(self, leaving: frozenset[NodeId]) -> Proposal:
        assert isinstance(self.isr, Stable)
        assert self._node_id not in leaving
        self.isr = Shrinking(self.isr.members, leaving)
        return self._propose()

    def can_resign(self) -> bool:
        """Whether somebody else could lead, and nothing else is being asked for."""
        return isinstance(self.isr, Stable) and not self._is_asking and len(self.members) > 1

    def resign(self) -> Proposal:
        """Ask for another leader: an in-sync set without this one."""
        assert self.can_resign()
        self._is_asking = True
        return self._proposal(self.isr.members - {self._node_id})

    def _propose(self) -> Proposal:
        self._is_asking = True
        return self._proposal(proposed_members(self.isr))

    def _proposal(self, members: frozenset[NodeId]) -> Proposal:
        in_order = [node for node in self.replicas if node in members]
        return Proposal(
            self.leader_epoch,
            self.partition_epoch,
            tuple((node, self._epoch_of(node)) for node in in_order),
        )

    def _epoch_of(self, node: NodeId) -> int:
        if node == self._node_id:
            return self._broker_epoch
        return self.followers[node].broker_epoch

    def confirm(self, state: PartitionState) -> bool:
        """The controller's word on this epoch's in-sync set; whether it is news."""
        assert state.leader_epoch == self.leader_epoch
        if state.partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = state.partition_epoch
        self.isr = Stable(frozenset(state.isr))
        self._is_asking = False
        return True

    def refused(self, proposal: Proposal, *, settled: bool) -> None:
        """The proposal was not taken. `settled`: it is certain that nothing came of it.

        Otherwise something has changed that this leader does not know yet: what is proposed may
        be so already, and it waits for the image.
        """
        if proposal.partition_epoch == self.partition_epoch and settled:
            self.isr = Stable(self.isr.members)
            self._is_asking = False

    def lags(self, now_s: float) -> Iterator[tuple[NodeId, float]]:
        """For how long each follower has not had everything."""
        for node, follower in self.followers.items():
            yield node, max(0.0, now_s - follower.caught_up_s)
