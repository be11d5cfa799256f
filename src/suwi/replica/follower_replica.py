"""The follower side of one partition: it does to its log what the leader says.

The fetcher calls `append_fetched`, `truncate_to_divergence` where the logs differ, and
`truncate_fully_and_start_at` where the leader has nothing left that follows this log.
Invariant: what is truncated and was committed, or may have been, is reported as a `Loss`.
"""

import logging

from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_log import PartitionLog
from suwi.log.steps import Steps, after_each
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import batches
from suwi.replica.log_sync import syncing
from suwi.replica.loss import lost_between
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
        """Take in what the leader sent. Raises CorruptMessage, InvalidRecord, KafkaStorageError."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.ready_log or replica_log.get_ready()
        room_at = _room_wanted(partition_log, records)
        if room_at is not None:
            # The bytes are kept for longer than this call.
            kept = memoryview(bytes(records))
            replica_log.change(self._restarting_with(room_at, kept, leader_epoch, watermark, start))
        else:
            self._take_in(partition_log, records, leader_epoch, watermark, start)

    def _take_in(
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
                # A full disk may have taken some of it.
                self._take_over_marks(partition_log, watermark, start)
                raise
        self._take_over_marks(partition_log, watermark, start)

    def _take_over_marks(
        self, partition_log: PartitionLog, watermark: Offset, start: Offset
    ) -> None:
        replica_log = self._replica_log
        if start > partition_log.start_offset:
            partition_log.advance_start(min(start, partition_log.end_offset))
            replica_log.mark_dirty()
        # What was deleted had been committed.
        known = min(max(watermark, partition_log.start_offset), partition_log.end_offset)
        if known > replica_log.high_watermark:
            replica_log.mark_dirty()
            replica_log.advance(known)

    # -- truncating ----------------------------------------------------------------------------

    def truncate_to_divergence(self, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """The leader's log has `epoch` up to `end_offset`, and parts from this one at the latest
        there. Hazards 1 and 3: truncate by epoch, never by watermark, and then ask again."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.get_ready()
        point = partition_log.epochs.truncation_point(epoch, end_offset, partition_log.end_offset)
        self.truncate(point)

    def truncate(self, offset: Offset) -> None:
        self._replica_log.change(self._truncating(offset))

    def truncate_fully_and_start_at(self, start: Offset) -> None:
        """The leader has nothing left of what follows this log: go on where its log starts."""
        replica_log = self._replica_log
        assert replica_log.leader_replica is None
        partition_log = replica_log.get_ready()
        if not partition_log.start_offset <= start < partition_log.end_offset:
            log.info("starting over", extra={"partition": str(replica_log.partition), "at": start})
            replica_log.change(self._restarting(start))

    def _restarting(self, start: Offset) -> Steps[None]:
        replica_log = self._replica_log
        partition_log = replica_log.log
        assert partition_log is not None
        yield from after_each(partition_log.restarting_at(start), replica_log.clamp_high_watermark)
        yield from replica_log.writing_truncation()
        yield from syncing(partition_log)

    def _restarting_with(
        self,
        at: Offset,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        watermark: Offset,
        start: Offset,
    ) -> Steps[None]:
        """Begin anew with these records, unless the leader is another by then."""
        replica_log = self._replica_log
        partition_log = replica_log.log
        assert partition_log is not None
        start = max(start, partition_log.start_offset)
        yield from after_each(partition_log.restarting_at(at), replica_log.clamp_high_watermark)
        yield from replica_log.writing_truncation()
        if replica_log.leader_replica is None and replica_log.leader_epoch == leader_epoch:
            self._take_in(partition_log, records, leader_epoch, watermark, start)
        yield from syncing(partition_log)

    def _truncating(self, offset: Offset) -> Steps[None]:
        """Once begun it goes on to its end, whoever leads by then: the leader that this log was
        compared with has said that what goes is not its own."""
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
        first = max(partition_log.end_offset, start)  # A batch that holds `offset` went whole.
        if first < losable_end:
            loss = lost_between(
                replica_log.partition, epochs, first, losable_end, committed_below=committed
            )
            log.error("records are lost", extra={"loss": str(loss)})
            replica_log.context.on_loss(loss)
        yield from replica_log.writing_truncation()
        yield from syncing(partition_log)

    def _losable_end(self, partition_log: PartitionLog) -> Offset:
        """Up to where the records are, or may be, committed: as far as this replica knows. If all
        of the log is older than an unclean election, any of it may have been: a leader that was
        killed knows only the watermark that it last wrote down, a follower what it last heard."""
        is_older = partition_log.epochs.latest < self._replica_log.unclean_epoch
        return partition_log.end_offset if is_older else self._replica_log.high_watermark


def _room_wanted(partition_log: PartitionLog, records: memoryview) -> Offset | None:
    """A log that starts within a batch, since records were deleted, is copied with all of that
    batch: where an empty copy must begin then. None: it is right as it is."""
    if not records or partition_log.start_offset != partition_log.end_offset:
        return None
    _, first = next(batches(records))
    if first.base_offset < partition_log.end_offset <= first.last_offset:
        return Offset(first.base_offset)
    return None
