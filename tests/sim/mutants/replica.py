"""What leaders and followers can get wrong: hazards 2, 4 to 10, 12 and 22.

Hazards 1, 3 and 13 are shown by the lab: `suwi/lab/mutants.py`.
"""

import asyncio
from typing import Any

from suwi.handlers import fetch_job
from suwi.handlers.fetch_job import Job
from suwi.lab.mutants import Mutant
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_EPOCH, NodeId, Offset
from suwi.replica import leader_state
from suwi.replica.alter_partition_manager import AlterPartitionManager
from suwi.replica.leader_state import LeaderState, Shrinking, possible_members
from suwi.replica.partition import Partition
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.replica.replica_fetcher_manager import ReplicaFetcherManager

# -- hazard 2 -------------------------------------------------------------------------------------


def _never_diverges(*_: object) -> None:
    return None


# -- hazard 4 -------------------------------------------------------------------------------------


def _believes_anybody(self: Partition, known_to_client: int) -> None:
    pass


def _answers_anybody(self: Job, partition: Partition, epoch: int) -> None:
    pass


# -- hazard 5 -------------------------------------------------------------------------------------

_read_for_follower = Job._read_for_follower


def _counts_a_diverging_fetch(
    self: Job, key: Any, partition: Partition, asked: Any, diverging: Any, *rest: Any
) -> Any:
    found = _read_for_follower(self, key, partition, asked, diverging, *rest)
    if diverging is not None:
        assert partition.leader_replica is not None
        partition.leader_replica.record_progress(
            NodeId(self.asked.replica_id),
            Offset(asked.fetch_offset),
            Offset(asked.log_start_offset),
            self.asked.replica_epoch,
        )
    return found


# -- hazard 6 -------------------------------------------------------------------------------------

_process_partition = ReplicaFetcher._process_partition


def _takes_the_watermark_first(self: ReplicaFetcher, copy: Any, asked: Any, fetched: Any) -> None:
    if fetched.diverging_epoch is None:
        _process_partition(self, copy, asked, fetched)
        return
    partition = copy.partition
    partition.replica_log.advance(min(Offset(fetched.high_watermark), partition.log.end_offset))

    def then() -> None:
        if copy.is_current:
            _process_partition(self, copy, asked, fetched)

    asyncio.get_running_loop().call_soon(then)


# -- hazard 7 -------------------------------------------------------------------------------------

_joins = LeaderState.can_join_isr


def _joins_at_the_watermark(self: LeaderState, *arguments: Any) -> bool:
    epoch_start, self.epoch_start = self.epoch_start, Offset(0)
    try:
        return _joins(self, *arguments)
    finally:
        self.epoch_start = epoch_start


# -- hazard 8 -------------------------------------------------------------------------------------


def _counts_on_the_shrink(isr: Any) -> frozenset[NodeId]:
    if isinstance(isr, Shrinking):
        return isr.members - isr.leaving
    return possible_members(isr)


# -- hazard 9 -------------------------------------------------------------------------------------


def _confirms_itself(self: AlterPartitionManager, partition: Partition, proposal: Any) -> None:
    """As before KIP-497: the leader decides, and the controller learns it later."""
    leader = partition.leader_replica
    assert leader is not None
    leading = leader.state
    members = tuple(node for node, _ in proposal.members)
    leader.confirm(
        PartitionState(
            leading._node_id,
            leading.leader_epoch,
            leading.partition_epoch + 1,
            leading.replicas,
            members,
        )
    )


# -- hazard 12 ------------------------------------------------------------------------------------

_watermark = LeaderState.watermark


def _commits_alone(self: LeaderState, own_end: Offset, **facts: Any) -> Offset:
    return _watermark(self, own_end, **{**facts, "members_min": 1})


# -- hazard 22 ------------------------------------------------------------------------------------

_assign = ReplicaFetcherManager.add_fetcher_for
_build_fetch = ReplicaFetcher._build_fetch


def _assign_without_a_look(self: ReplicaFetcherManager, partition: Partition) -> None:
    # Also after a pause: a broker that is not registered fetches nothing.
    leaders = self.__dict__.setdefault("all_leaders", {})
    is_same = leaders.get(partition) == partition.leader
    leaders[partition] = partition.leader
    _assign(self, partition)
    fetcher = self._fetchers[partition.leader]
    key = (partition.topic_id, int(partition.partition.partition))
    unchecked = fetcher.__dict__.setdefault("unchecked", set())
    (unchecked.add if is_same else unchecked.discard)(key)


def _fetch_without_epoch(self: ReplicaFetcher) -> Any:
    asked = _build_fetch(self)
    for key in self.__dict__.get("unchecked", ()):
        if key in asked.wanted:
            asked.wanted[key] = asked.wanted[key]._replace(last_fetched_epoch=NO_EPOCH)
    return asked


MUTANTS = (
    Mutant(
        "no-epoch-truncation",
        2,
        "a leader never reports to a follower that their logs diverge",
        ((fetch_job, "_divergence", _never_diverges),),
    ),
    Mutant(
        "any-leader-epoch",
        4,
        "a leader accepts requests with another leader epoch, though it may have been deposed",
        (
            (Partition, "check_epoch", _believes_anybody),
            (Job, "_check_leads", _answers_anybody),
        ),
    ),
    Mutant(
        "diverging-fetch-counts",
        5,
        "a leader counts a fetch from a diverging log as progress",
        ((Job, "_read_for_follower", _counts_a_diverging_fetch),),
    ),
    Mutant(
        "watermark-before-truncation",
        6,
        "a former leader adopts the new high watermark before it truncates its log",
        ((ReplicaFetcher, "_process_partition", _takes_the_watermark_first),),
    ),
    Mutant(
        "join-at-watermark",
        7,
        "a follower joins at the high watermark, whatever the start offset of the leader epoch",
        ((LeaderState, "can_join_isr", _joins_at_the_watermark),),
    ),
    Mutant(
        "unconfirmed-shrink",
        8,
        "a leader does not wait for a member whose removal from the ISR it has only proposed",
        ((leader_state, "possible_members", _counts_on_the_shrink),),
    ),
    Mutant(
        "isr-without-controller",
        9,
        "a leader changes the ISR by itself",
        ((AlterPartitionManager, "propose", _confirms_itself),),
    ),
    Mutant(
        "commit-below-minimum",
        12,
        "the high watermark advances with fewer members than min.insync.replicas",
        ((LeaderState, "watermark", _commits_alone),),
    ),
    Mutant(
        "same-leader-no-check",
        22,
        "logs are not compared if the leader is the same in another epoch",
        (
            (ReplicaFetcherManager, "add_fetcher_for", _assign_without_a_look),
            (ReplicaFetcher, "_build_fetch", _fetch_without_epoch),
        ),
    ),
)
