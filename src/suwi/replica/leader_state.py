"""The leader's view of its followers: their progress, the ISR and the high watermark. Pure.

Followers report with every fetch (`record_progress`). `watermark` computes what is committed,
`can_join_isr` and `out_of_sync_replicas` find needed ISR changes; `expand` and `shrink` build a
proposal, and the controller's result arrives at `confirm` or `refused`.
The leader proposes a change of the ISR, the controller confirms it (KIP-497). Until then the high
watermark waits for every replica that may be a member: the confirmed and the proposed ones. To
shrink it `replica_manager.py` checks periodically; to expand it `leader_replica.py` does
(`record_progress`); `alter_partition_manager.py` sends the proposals.
Invariant: the high watermark never passes the end offset of a replica that may be in sync.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from suwi.log.damage import Rereads
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_OFFSET, LeaderEpoch, NodeId, Offset

UNKNOWN_EPOCH = -1

IsLive: TypeAlias = Callable[[NodeId, int], bool]
"""Whether a broker is unfenced with this broker epoch (UNKNOWN_EPOCH: with any)."""


@dataclass(frozen=True, slots=True)
class Stable:
    members: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class Expanding:
    members: frozenset[NodeId]
    joining: NodeId


@dataclass(frozen=True, slots=True)
class Shrinking:
    members: frozenset[NodeId]
    leaving: frozenset[NodeId]


Isr: TypeAlias = Stable | Expanding | Shrinking


def possible_members(isr: Isr) -> frozenset[NodeId]:
    """Every replica that the controller may count as in sync; the high watermark waits for them."""
    match isr:
        case Stable(members):
            return members
        case Expanding(members, joining):
            return members | {joining}
        case Shrinking(members, _):
            return members  # Hazard 8: not confirmed yet, so still wait for them.


def proposed_members(isr: Isr) -> frozenset[NodeId]:
    """The ISR that the leader proposes to the controller."""
    return isr.members - isr.leaving if isinstance(isr, Shrinking) else possible_members(isr)


@dataclass(slots=True)
class Follower:
    """The progress of one follower since this leader epoch began."""

    end_offset: Offset = NO_OFFSET
    """The follower has everything below; NO_OFFSET until its first fetch."""
    start_offset: Offset = NO_OFFSET
    broker_epoch: int = UNKNOWN_EPOCH
    caught_up_s: float = float("-inf")
    """When the follower last had everything that the leader had."""
    fetched_s: float = float("-inf")
    leader_end: Offset = NO_OFFSET
    """The leader's end offset at the follower's last fetch."""
    watermark_sent: Offset = NO_OFFSET
    start_sent: Offset = NO_OFFSET
    redirects: Rereads = field(default_factory=Rereads)
    """Where consumers were told to read from it (KIP-392)."""

    def is_caught_up(self, leader_end: Offset, now_s: float, lag_s_max: float) -> bool:
        return self.end_offset == leader_end or now_s - self.caught_up_s <= lag_s_max


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR for the controller to confirm, valid only for this partition epoch."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    members: tuple[tuple[NodeId, int], ...]
    """With their broker epochs (KIP-903): a broker that has restarted since must not join."""
    will_discard: bool = False
    """A follower leaves and will discard its log: see `replica/damaged_replicas.py`."""


class LeaderState:
    """One leader epoch of one partition, on its leader."""

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
        self.replication_factor = state.replication_factor
        self.isr: Isr = Stable(frozenset(state.isr))
        self.epoch_start = epoch_start
        self.started_s = now_s
        """When followers could begin to fetch; later if the log had to be opened."""
        self._node_id = node_id
        self.broker_epoch = broker_epoch
        self._is_proposing = False
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
        """A follower fetches from `end_offset`, which acknowledges everything before it.

        Returns False if the report is ignored because it is from an earlier broker epoch.
        """
        follower = self.followers[node]
        if broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch > follower.broker_epoch >= 0:
            # Hazard 10: after a restart the follower may have lost what it had.
            follower.caught_up_s = float("-inf")
            follower.leader_end = NO_OFFSET
        if end_offset >= leader_end:
            follower.caught_up_s = max(follower.caught_up_s, now_s)
        elif NO_OFFSET < follower.leader_end <= end_offset:
            follower.caught_up_s = max(follower.caught_up_s, follower.fetched_s)
        follower.end_offset = end_offset
        follower.start_offset = start_offset
        follower.broker_epoch = broker_epoch
        follower.leader_end = leader_end
        follower.fetched_s = now_s
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
        """The new high watermark; NO_OFFSET where it must not advance.

        `own_end` is the end offset that the leader itself acknowledges. The high watermark also
        waits for a follower that keeps up but has not joined the ISR yet: otherwise that follower
        could never reach a high watermark that keeps advancing.
        """
        if len(self.members) < min(members_min, self.replication_factor):
            return NO_OFFSET  # Hazard 12: too few in-sync replicas to commit.
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

    def is_held_back(self, high_watermark: Offset) -> bool:
        """Whether an in-sync follower has nothing above: then an append of the leader commits
        nothing."""
        for node in possible_members(self.isr):
            follower = self.followers.get(node)
            if follower is not None and follower.end_offset <= high_watermark:
                return True
        return False

    # -- ISR changes ---------------------------------------------------------------------------

    def isr_has_fetched(self, now_s: float, within_s: float) -> bool:
        """Whether every other member of the ISR has fetched from this leader within that time.

        A new leader comes from the ISR, and a member that leads does not fetch.
        """
        return all(
            now_s - max(follower.fetched_s, follower.caught_up_s) <= within_s
            for node, follower in self.followers.items()
            if node in self.isr.members
        )

    def can_join_isr(self, node: NodeId, high_watermark: Offset, is_live: IsLive) -> bool:
        """Whether a follower outside the ISR has caught up and may be proposed."""
        follower = self.followers[node]
        return (
            isinstance(self.isr, Stable)
            and not self._is_proposing
            and node not in self.isr.members
            # Hazard 7: a new leader's high watermark may be below the start offset of its epoch.
            and follower.end_offset >= max(high_watermark, self.epoch_start)
            and is_live(node, follower.broker_epoch)
        )

    def out_of_sync_replicas(
        self, leader_end: Offset, now_s: float, lag_s_max: float
    ) -> frozenset[NodeId]:
        """ISR members that have not been caught up for longer than `lag_s_max`."""
        if not isinstance(self.isr, Stable) or self._is_proposing:
            return frozenset()
        if now_s - self.started_s <= lag_s_max:
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
        """Whether another replica could lead, and no proposal is pending."""
        return isinstance(self.isr, Stable) and not self._is_proposing and len(self.members) > 1

    def resign(self) -> Proposal:
        """Propose an ISR without this broker, so that another replica becomes the leader."""
        assert self.can_resign()
        self._is_proposing = True
        return self._proposal(self.isr.members - {self._node_id})

    def _propose(self) -> Proposal:
        self._is_proposing = True
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
            return self.broker_epoch
        return self.followers[node].broker_epoch

    def confirm(self, state: PartitionState) -> bool:
        """Apply the ISR of a newer partition epoch. Returns whether it was newer.

        A reassignment may have added replicas. To remove some it starts a new leader epoch.
        """
        assert state.leader_epoch == self.leader_epoch
        if state.partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.replication_factor = state.replication_factor
        for node in state.replicas:
            if node != self._node_id and node not in self.followers:
                self.followers[node] = Follower()
        assert len(self.followers) == len(self.replicas) - 1
        for node in self.members.difference(state.isr, (self._node_id,)):
            # It may have left by itself: the high watermark must not wait for it any longer.
            self.followers[node].caught_up_s = float("-inf")
            self.followers[node].leader_end = NO_OFFSET
        self.isr = Stable(frozenset(state.isr))
        self._is_proposing = False
        return True

    def refused(self, proposal: Proposal, *, is_final: bool) -> None:
        """The controller rejected the proposal. `is_final`: it is certain that nothing was written.

        Otherwise the partition has changed in a way that this leader has not seen yet, and the
        proposed ISR may already be in effect: the leader waits for the image.
        """
        if proposal.partition_epoch == self.partition_epoch and is_final:
            self.isr = Stable(self.isr.members)
            self._is_proposing = False

    def lags(self, now_s: float) -> Iterator[tuple[NodeId, float]]:
        """Seconds since each follower was last caught up."""
        for node, follower in self.followers.items():
            yield node, max(0.0, now_s - follower.caught_up_s)
