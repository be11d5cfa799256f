"""The follower side of one partition: applies the leader's fetch responses to the local log.

The fetcher calls `append_fetched`, `truncate_to_divergence` where the logs differ, and
`truncate_fully_and_start_at` where the leader's log no longer contains the follower's fetch offset.
Invariant: truncated records that were committed, or may have been, are reported as a `Loss`.
"""

import logging
from collections.abc import Callable

from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import Steps, after_each
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import batches
from suwi.replica.log_sync import syncing
from suwi.replica.loss import lost_between, ranges_between
from suwi.replica.replica_log import ReplicaLog

log = logging.getLogger(__name__)


class FollowerReplica:
    __slots__ = ("_replica_log",)

    def __init__(self, replica_log: ReplicaLog) -> None:
        self._replica_log = replica_log

    # -- appending -----------------------------------------------------------------------------

    def append_fetched(
        self, records: memoryview, leader_epoch: LeaderEpoch, watermark: Offset, start: Offset
    ) -> None:
        """Append fetched records. Raises CorruptMessage, InvalidRecord, KafkaStorageError."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.ready_log or replica_log.get_ready()
        restart_at = _restart_offset(partition_log, records)
        if restart_at is not None:
            # The restart may outlive the network buffer.
            copied = memoryview(bytes(records))
            start = max(start, partition_log.start_offset)

            def append(restarted: PartitionLog) -> None:
                if replica_log.leader_replica is None and replica_log.leader_epoch == leader_epoch:
                    self._append(restarted, copied, leader_epoch, watermark, start)

            replica_log.change(self._restarting(restart_at, then=append))
        else:
            self._append(partition_log, records, leader_epoch, watermark, start)

    def _append(
        self,
        partition_log: PartitionLog,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        watermark: Offset,
        start: Offset,
    ) -> None:
        start = max(start, partition_log.start_offset)
        if records:
            self._replica_log.mark_dirty()
            try:
                now_ms = self._replica_log.context.clock.now_ms()
                partition_log.append_as_follower(records, leader_epoch, now_ms)
            except KafkaStorageError:
                # A full disk may have accepted some of the batches.
                self._advance_offsets(partition_log, watermark, start)
                raise
        self._advance_offsets(partition_log, watermark, start)

    def _advance_offsets(
        self, partition_log: PartitionLog, watermark: Offset, start: Offset
    ) -> None:
        replica_log = self._replica_log
        if start > partition_log.start_offset:
            partition_log.advance_start(min(start, partition_log.end_offset))
            replica_log.mark_dirty()
        # Deleted records had been committed.
        known = min(max(watermark, partition_log.start_offset), partition_log.end_offset)
        partition_log.producers.forget_ended_txns(known)
        if known > replica_log.high_watermark:
            replica_log.mark_dirty()
            replica_log.advance(known)

    # -- truncating ----------------------------------------------------------------------------

    def truncate_to_divergence(self, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Truncate to where the leader's log, which has `epoch` up to `end_offset`, diverges from
        this one. Hazards 1 and 3: truncate by epoch, never by high watermark, then fetch again."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.get_ready()
        point = partition_log.epochs.truncation_point(epoch, end_offset, partition_log.end_offset)
        self.truncate(point)

    def truncate(self, offset: Offset) -> None:
        self._replica_log.change(self._truncating(offset))

    def truncate_fully_and_start_at(self, start: Offset) -> None:
        """Discard the log and continue at the leader's start offset, unless this log has it."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.get_ready()
        if not partition_log.start_offset <= start < partition_log.end_offset:
            log.info(
                "log discarded, restarting at the leader's start offset",
                extra={"partition": str(replica_log.partition), "start_offset": start},
            )
            replica_log.change(self._restarting(start))

    def discard_damaged(self) -> None:
        """Discard the log, to fetch it anew from its start. The controller has confirmed that this
        replica is not in the ISR. The files are set aside."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        start = replica_log.get_ready().start_offset
        replica_log.change(self._restarting(start, keep_files=True))

    def _restarting(
        self,
        at: Offset,
        *,
        keep_files: bool = False,
        then: Callable[[PartitionLog], None] = lambda _: None,
    ) -> Steps[None]:
        """Restart the log at `at`. `then` is called when it is empty and not synced yet."""
        replica_log = self._replica_log
        partition_log = replica_log.log
        assert partition_log is not None
        removed = ranges_between(
            partition_log.epochs, partition_log.start_offset, partition_log.end_offset
        )
        restarting = partition_log.restarting_at(at, keep_files=keep_files)
        yield from after_each(restarting, replica_log.clamp_high_watermark)
        replica_log.context.on_truncated(replica_log, partition_log.end_offset, removed)
        yield from replica_log.writing_truncation()
        then(partition_log)
        yield from syncing(partition_log)

    def _truncating(self, offset: Offset) -> Steps[None]:
        """Once started, the truncation runs to its end even if the leader changes meanwhile: the
        leader this log was compared with does not have the truncated records."""
        replica_log = self._replica_log
        partition_log = replica_log.log
        assert partition_log is not None
        start, end = partition_log.start_offset, partition_log.end_offset
        losable_end = self._losable_end(partition_log)
        epochs = LeaderEpochCache(partition_log.epochs.entries())
        committed = replica_log.high_watermark
        yield from after_each(partition_log.truncating(offset), replica_log.clamp_high_watermark)
        partition_log.forget_epochs_beyond_end()
        log.info(
            "truncated",
            extra={
                "partition": str(replica_log.partition),
                "from": end,
                "to": partition_log.end_offset,
                "epoch": replica_log.leader_epoch,
            },
        )
        # The batch that contains `offset` is removed completely.
        first = max(partition_log.end_offset, start)
        replica_log.context.on_truncated(
            replica_log, partition_log.end_offset, ranges_between(epochs, first, end)
        )
        if first < losable_end:
            loss = lost_between(
                replica_log.partition, epochs, first, losable_end, committed_below=committed
            )
            log.error("records lost", extra={"loss": str(loss)})
            replica_log.context.on_loss(loss)
        yield from replica_log.writing_truncation()
        yield from syncing(partition_log)

    def _losable_end(self, partition_log: PartitionLog) -> Offset:
        """Records below this offset are or may be committed, as far as this replica knows. If the
        whole log is older than an unclean election, any of it may have been committed: a killed
        leader knows only the high watermark of its last checkpoint, a follower that of its last
        fetch."""
        is_older = partition_log.epochs.latest < self._replica_log.unclean_epoch
        return partition_log.end_offset if is_older else self._replica_log.high_watermark


def _restart_offset(partition_log: PartitionLog, records: memoryview) -> Offset | None:
    """Where an empty log must restart to accept `records`; None if it can stay as it is.

    After DeleteRecords a leader's log may start within a batch. The follower fetches that batch
    whole, so its log must begin at the batch's base offset.
    """
    if not records or partition_log.start_offset != partition_log.end_offset:
        return None
    _, first = next(batches(records))
    if first.base_offset < partition_log.end_offset <= first.last_offset:
        return Offset(first.base_offset)
    return None
