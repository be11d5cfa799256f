"""The leader side of one partition, for one leader epoch: it advances the high watermark.

Produce enters at `after_append`, followers' progress at `record_progress`, the controller's results
at `confirm` and `refused`. `state` (`leader_state.py`) tracks the followers; this class applies the
consequences to the log, to delayed operations and to the ISR.
Invariant: nothing is appended before the leader epoch is in the log, see `start_epoch`.
"""

import asyncio
import logging

from suwi.log.partition_log import PartitionLog
from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError, NotEnoughReplicasAfterAppend
from suwi.model.ids import NodeId, Offset
from suwi.replica.leader_state import LeaderState, Proposal
from suwi.replica.log_sync import LogSyncer
from suwi.replica.replica_log import ReplicaLog

log = logging.getLogger(__name__)


class LeaderReplica:
    __slots__ = ("_replica_log", "_syncer", "has_enough_replicas", "has_started", "state")

    def __init__(self, state: LeaderState, replica_log: ReplicaLog, syncer: LogSyncer) -> None:
        self.state = state
        self.has_started = False
        """Whether the leader epoch is in the log."""
        self.has_enough_replicas = True
        """Whether the ISR has at least min.insync.replicas members."""
        self._replica_log = replica_log
        self._syncer = syncer

    def start_epoch(self, partition_log: PartitionLog) -> None:
        """The log is ready: write the epoch's start offset. Raises KafkaStorageError."""
        state = self.state
        state.epoch_start = partition_log.end_offset
        state.started_s = asyncio.get_running_loop().time()
        try:
            partition_log.assign_epoch(state.leader_epoch, partition_log.end_offset)
        except KafkaStorageError:
            if not partition_log.state.is_merely_full or state.can_resign():
                raise
            # No other replica can serve readers. An append writes the epoch first, or is refused.
        self.has_started = True
        if len(state.replicas) == 1:
            # The only replica: everything in its log is committed, but for what was appended in the
            # epoch before and is being synced.
            is_syncing = self._syncer.task is not None
            end = partition_log.safe_end if is_syncing else partition_log.end_offset
            self._replica_log.advance(end)
        else:
            self._syncer.sync_if_due(partition_log)
            self._update_watermark()

    # -- records -------------------------------------------------------------------------------

    def after_append(self, partition_log: PartitionLog) -> None:
        replica_log = self._replica_log
        if not replica_log.dirty:
            replica_log.mark_dirty()
        if self._syncer.task is None:
            self._syncer.sync_if_due(partition_log)
        if self.state.followers:
            if not self.state.is_held_back(replica_log.high_watermark):
                self._update_watermark()
            replica_log.delayed.notify_followers()
        elif (
            partition_log.config.flush_messages > 1 and partition_log.durability.truncation_is_safe
        ):
            replica_log.advance(partition_log.end_offset)

    def log_synced(self, partition_log: PartitionLog) -> None:
        """A sync of the log has completed."""
        if not self.has_started:
            return
        if len(self.state.replicas) > 1:
            self._update_watermark()
        else:
            self._replica_log.advance(partition_log.safe_end)

    def record_progress(
        self, node: NodeId, end_offset: Offset, start_offset: Offset, broker_epoch: int
    ) -> None:
        """A follower fetched from `end_offset`, so it has everything below."""
        state = self.state
        replica_log = self._replica_log
        partition_log = replica_log.ready_log or replica_log.get_ready()
        follower = state.followers[node]
        ended_at, started_at = follower.end_offset, follower.start_offset
        counts = state.record_progress(
            node,
            end_offset,
            start_offset=start_offset,
            broker_epoch=broker_epoch,
            leader_end=partition_log.end_offset,
            now_s=asyncio.get_running_loop().time(),
        )
        if not counts:
            return
        if end_offset < ended_at:
            # It is read again, if another fetch session of this follower knows that it has more.
            replica_log.delayed.notify_followers()
        if start_offset > started_at:
            replica_log.delayed.notify_low_watermark()
        if end_offset == replica_log.high_watermark == partition_log.end_offset and (
            node in state.members
        ):
            return  # Mostly: there is nothing to commit, and it is in sync.
        self._update_watermark()
        if start_offset < partition_log.start_offset:
            # The follower's records below the log start offset can no longer be compared and may be
            # from another leader. It must learn the new start offset before it may join the ISR.
            return
        if state.can_join_isr(node, replica_log.high_watermark, replica_log.context.is_live):
            self._propose(state.expand(node))

    def _update_watermark(self) -> None:
        replica_log = self._replica_log
        partition_log = replica_log.log
        assert partition_log is not None
        if partition_log.state.offline_because is not None:
            return  # Records on a failed disk may be lost, and no other replica may have them.
        context = replica_log.context
        replica_log.advance(
            self.state.watermark(
                partition_log.safe_end,
                members_min=partition_log.config.min_insync_replicas,
                leader_end=partition_log.end_offset,
                now_s=asyncio.get_running_loop().time(),
                lag_s_max=context.lag_s_max,
                is_live=context.is_live,
            )
        )

    # -- the ISR -------------------------------------------------------------------------------

    def maybe_shrink_isr(self) -> None:
        """Propose to remove followers from the ISR that have not kept up."""
        replica_log = self._replica_log
        partition_log = replica_log.log
        if partition_log is None or not self.has_started:
            return
        if partition_log.state.offline_because is not None:
            self.resign()
            return
        end = partition_log.end_offset
        if not self.state.followers and replica_log.high_watermark == end:
            return  # Most partitions of a single broker, every time.
        leaving = self.state.out_of_sync_replicas(
            end,
            asyncio.get_running_loop().time(),
            replica_log.context.lag_s_max,
        )
        if leaving:
            self._propose(self.state.shrink(leaving))
        else:
            # The high watermark may have waited for a joining follower that no longer keeps up.
            self._update_watermark()

    def live_brokers_changed(self) -> None:
        self._replica_log.delayed.notify_low_watermark()
        if self.has_started and self.state.followers:
            self._update_watermark()

    def confirm(self, state: PartitionState) -> None:
        """The image has a new ISR for this leader epoch."""
        if self.state.leader_epoch != state.leader_epoch:
            return
        before = self.state.members
        if not self.state.confirm(state):
            return
        members = self.state.members
        log.info(
            "isr confirmed",
            extra={"partition": str(self._replica_log.partition), "isr": sorted(members)},
        )
        self._replica_log.context.on_isr(before, members)
        self._replica_log.delayed.notify_low_watermark()
        self._replica_log.delayed.notify_followers()  # One that has left may return.
        self.count_replicas()

    def refused(self, proposal: Proposal, *, is_final: bool) -> None:
        if self.state.leader_epoch == proposal.leader_epoch:
            self.state.refused(proposal, is_final=is_final)

    def count_replicas(self) -> None:
        """The ISR or min.insync.replicas changed: check the count, fail delayed produces if there
        are too few replicas, and advance the high watermark."""
        state, replica_log = self.state, self._replica_log
        needed = min(replica_log.config.min_insync_replicas, state.replication_factor)
        self.has_enough_replicas = len(state.members) >= needed
        if not self.has_enough_replicas:
            replica_log.delayed.fail(
                NotEnoughReplicasAfterAppend(
                    f"{replica_log.partition} has {len(state.members)} replicas in sync, "
                    f"fewer than min.insync.replicas {needed}"
                )
            )
        if self.has_started:
            self._update_watermark()

    def resign(self, reason: str = "the log is not writable") -> None:
        """The disk is full or offline, or the log is damaged: ask the controller for another
        leader."""
        if self.state.can_resign():
            extra = {"partition": str(self._replica_log.partition), "reason": reason}
            log.warning("resigning as leader", extra=extra)
            self._propose(self.state.resign())

    def _propose(self, proposal: Proposal) -> None:
        self._replica_log.context.propose(self._replica_log, proposal)
