"""One partition's records on disk: a row of segments, of which the last takes the appends.

Leaders enter at `append_as_leader`, followers at `append_as_follower`, readers at `read`.
All calls are synchronous and made on the event loop; a `SyncJob` runs in a thread.
Invariant: start_offset <= end_offset; segments adjoin; offsets and epochs never fall.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from suwi.env import File, FileRegion
from suwi.log import checkpoints, names
from suwi.log.directory_state import DirectoryState
from suwi.log.epochs import LeaderEpochs
from suwi.log.file_cache import FileCache
from suwi.log.producer_loading import load_producers
from suwi.log.producer_snapshot import encode_snapshot
from suwi.log.producers import Producers
from suwi.log.segment import Located, Segment, TornSegment
from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import InvalidRecord, OffsetOutOfRange
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader, batches, place
from suwi.records.record import read_marker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch lies in the log: just appended, or found to be there already."""

    base_offset: Offset
    last_offset: Offset
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A readable range of one segment's file, whole batches from its start on."""

    log: "PartitionLog"
    path: str
    position: int
    size_bytes: int

    def read(self) -> bytes:
        return self.log.files.get(self.path).pread(self.size_bytes, self.position)

    def pin(self) -> tuple[FileRegion, Callable[[], None]]:
        """The range for sending, and what to call when it is sent or given up."""
        owner, generation = self.log, self.log.generation
        file = owner.files.pin(self.path)
        region = FileRegion(
            file, self.position, self.size_bytes, lambda: owner.generation == generation
        )
        return region, lambda: owner.files.unpin(file)


@dataclass(frozen=True, slots=True)
class SyncJob:
    """Files to sync in a thread; hand it back with `PartitionLog.synced` or `sync_failed`."""

    end_offset: Offset
    files: tuple[File, ...]

    def run(self) -> None:
        for file in self.files:
            file.sync()


class PartitionLog:
    def __init__(
        self,
        files: FileCache,
        directory: str,
        partition: TopicPartition,
        config: TopicConfig,
        state: DirectoryState,
        *,
        segments: list[Segment],
        producers: Producers,
        epochs: LeaderEpochs,
        start_offset: Offset,
        recovery_point: Offset,
    ) -> None:
        assert segments
        self.files = files
        self.dir = directory
        self.partition = partition
        self.config = config
        self.state = state
        self.producers = producers
        self.epochs = epochs
        self.start_offset = start_offset
        self.recovery_point = recovery_point
        self.generation = 0
        """Rises when readable bytes may become others: truncation, deletion of the log. (A segment
        that retention removes stays as it is for those who have it open.)"""
        self.roll_jitter_ms = 0
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._end_offset = segments[-1].next_offset

    # -- what it holds -------------------------------------------------------------------------

    @property
    def end_offset(self) -> Offset:
        return self._end_offset

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def segments(self) -> list[Segment]:
        return list(self._segments)

    # -- writing -------------------------------------------------------------------------------

    def append_as_leader(
        self, batch: memoryview, header: BatchHeader, epoch: LeaderEpoch, now_ms: int
    ) -> Appended:
        """Give a validated batch the next offsets and write it. Changes the batch in place.

        Raises OutOfOrderSequence, InvalidProducerEpoch or KafkaStorageError: nothing is appended.
        """
        if header.producer_id >= 0:
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(earlier.first_offset, earlier.last_offset, is_duplicate=True)
        base_offset = self._end_offset
        place(batch, base_offset, epoch)
        placed = BatchHeader(base_offset, header[1], epoch, *header[3:])
        self._write(batch, placed, now_ms)
        return Appended(base_offset, Offset(base_offset + header.last_offset_delta))

    def append_as_follower(
        self, records: memoryview, fetched_under: LeaderEpoch, now_ms: int
    ) -> None:
        """Write batches as the leader placed them.

        Raises InvalidRecord where they do not follow on or their epochs cannot be right.
        """
        for position, header in batches(records):
            if header.base_offset < self._end_offset:
                raise InvalidRecord(f"offset {header.base_offset} is before {self._end_offset}")
            if not self.epochs.latest <= header.partition_leader_epoch <= fetched_under:
                raise InvalidRecord(f"epoch {header.partition_leader_epoch} cannot be right here")
            # Before the append: a crash in between leaves an entry that says nothing false.
            self.assign_epoch(
                LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset)
            )
            self._write(records[position : position + header.size_bytes], header, now_ms)

    def _write(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        self.state.check()
        try:
            segment = self._segments[-1]
            if self._must_roll(segment, header, now_ms):
                segment = self.roll(now_ms)
            segment.append(batch, header)
        except (OSError, TornSegment) as error:
            raise self.state.failed(error) from error
        if header.producer_id >= 0:
            marker = read_marker(batch, header) if header.is_control else None
            aborted = self.producers.replay(header, marker)
            if aborted is not None:
                segment.txn_index.append(aborted)
        else:
            self.producers.end_offset = Offset(header.next_offset)
        self._end_offset = segment.next_offset

    def assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Epoch `epoch` writes from `start` on; written to the checkpoint where it is news."""
        if self.epochs.assign(epoch, start):
            self._write_epochs()

    def _write_epochs(self) -> None:
        path = f"{self.dir}/{names.LEADER_EPOCHS}"
        try:
            checkpoints.write_epochs(self.files.disk, path, self.epochs.entries())
        except OSError as error:
            raise self.state.failed(error) from error

    def _must_roll(self, segment: Segment, header: BatchHeader, now_ms: int) -> bool:
        size_bytes = segment.size_bytes
        if size_bytes == 0:
            return not segment.has_room(header.size_bytes, Offset(header.last_offset), 2**62)
        config = self.config
        if size_bytes + header.batch_length + 12 > config.segment_bytes:
            return True
        first = segment.first_timestamp
        if first is not None and first >= 0:
            waited_ms = header.max_timestamp - first
        else:
            waited_ms = now_ms - segment.created_ms
        return waited_ms > config.segment_ms - self.roll_jitter_ms or not segment.has_room(
            header.size_bytes, Offset(header.last_offset), config.segment_index_bytes
        )

    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the end. Raises OSError: then the old one goes on."""
        active = self._segments[-1]
        if active.size_bytes == 0:
            assert active.base_offset == self._end_offset
            return active
        active.finish()
        segment = Segment(
            self.files,
            self.dir,
            self._end_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            created_ms=now_ms,
            create=True,
        )
        self.write_snapshot()
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        return segment

    def write_snapshot(self) -> None:
        """Keep the producers at the end offset. Not vital: the log says it too."""
        if not len(self.producers):
            return
        path = f"{self.dir}/{names.offset_name(self._end_offset)}{names.SNAPSHOT}"
        data = encode_snapshot(self.producers.all())
        try:
            self.files.disk.write_atomically(path, data, sync=False)
        except OSError as error:
            log.warning("no producer snapshot", extra={"path": path, "reason": str(error)})

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, offset: Offset, bytes_max: int, limit: Offset, *, whole_batch: bool
    ) -> LogSlice | None:
        """Batches from the one that holds `offset` on, up to but without offset `limit`.

        At most `bytes_max` bytes, except that the first batch comes whole with `whole_batch`; the
        last one may be cut. None where there is nothing. Raises OffsetOutOfRange.
        """
        if not self.start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRange(
                f"{self.partition}: offset {offset} is not within "
                f"{self.start_offset} to {self._end_offset}"
            )
        self.state.check()
        if offset >= limit:
            return None
        number = bisect_right(self._bases, offset) - 1
        found = self._locate_from(number, offset)
        if found is None:
            return None
        segment, batch = found
        end = segment.size_bytes
        if limit < segment.next_offset:
            beyond = segment.locate(limit)
            end = beyond.position if beyond is not None else end
        size_bytes = min(bytes_max, end - batch.position)
        if size_bytes < batch.size_bytes:
            if not whole_batch or batch.position + batch.size_bytes > end:
                return None
            size_bytes = batch.size_bytes
        return LogSlice(self, segment.path(names.LOG), batch.position, size_bytes)

    def _locate_from(self, number: int, offset: Offset) -> tuple[Segment, Located] | None:
        for segment in self._segments[number:]:
            batch = segment.locate(offset)
            if batch is not None:
                return segment, batch
        return None

    def batch_at_time(self, timestamp: int) -> LogSlice | None:
        """The first batch with a record at or after `timestamp`; None where there is none."""
        for segment in self._segments:
            if segment.size_bytes and segment.max_timestamp >= timestamp:
                batch = segment.locate_time(timestamp, self.start_offset)
                if batch is not None:
                    path = segment.path(names.LOG)
                    return LogSlice(self, path, batch.position, batch.size_bytes)
        return None

    def batch_of_max_timestamp(self) -> LogSlice | None:
        """The first batch that has the newest timestamp; None in an empty log."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        return self.batch_at_time(newest.max_timestamp) if newest.max_timestamp >= 0 else None

    def aborted_between(self, first: Offset, end: Offset) -> list[AbortedTxn]:
        """Aborted transactions with records from `first` up to but without `end`."""
        number = max(bisect_right(self._bases, first) - 1, 0)
        return [
            aborted
            for segment in self._segments[number:]
            for aborted in segment.txn_index.between(first, end)
        ]

    # -- removing ------------------------------------------------------------------------------

    def advance_start(self, offset: Offset) -> None:
        """Records below `offset` are gone for readers; whole segments go with retention."""
        if offset <= self.start_offset:
            return
        assert offset <= self._end_offset
        self.start_offset = offset
        if self.epochs.truncate_start(offset):
            self._write_epochs()

    def take_oldest(self, count: int) -> list[str]:
        """Take the `count` oldest segments out of the log; the paths of their files to delete.

        The files are renamed to `.deleted` at once and can be removed at leisure.
        """
        if count == 0:
            return []
        assert count < len(self._segments)
        gone = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        self.advance_start(self._bases[0])
        return self._drop(gone)

    def truncate_to(self, offset: Offset) -> None:
        """Remove the records at and above `offset`."""
        if offset >= self._end_offset:
            return
        self.generation += 1
        keep = max(bisect_right(self._bases, offset), 1)
        gone = self._segments[keep:]
        del self._segments[keep:], self._bases[keep:]
        for path in self._drop(gone):
            self.files.disk.remove(path)
        self._segments[-1].truncate(offset)
        self._end_offset = self._segments[-1].next_offset
        self.recovery_point = min(self.recovery_point, self._end_offset)
        self.start_offset = min(self.start_offset, self._end_offset)
        if self.epochs.truncate_end(self._end_offset):
            self._write_epochs()
        self.producers = load_producers(
            self.files, self.dir, self._segments, self.start_offset, self._end_offset
        )

    def _drop(self, segments: list[Segment]) -> list[str]:
        return [path for segment in segments for path in mark_deleted(self.files, segment)]

    # -- durability ----------------------------------------------------------------------------

    @property
    def unsynced(self) -> bool:
        return self.recovery_point < self._end_offset

    def sync_job(self, up_to: Offset | None = None) -> SyncJob | None:
        """What must be synced for everything below `up_to` (the end) to survive a power loss."""
        end_offset = self._end_offset if up_to is None else up_to
        if end_offset <= self.recovery_point:
            return None
        first = max(bisect_right(self._bases, self.recovery_point) - 1, 0)
        pinned: list[File] = []
        for segment in self._segments[first:]:
            if segment.base_offset >= end_offset:
                break
            pinned += [self.files.pin(path) for path in self._paths_to_sync(segment)]
        return SyncJob(end_offset, tuple(pinned))

    def _paths_to_sync(self, segment: Segment) -> Iterator[str]:
        yield segment.path(names.LOG)
        if segment is not self._segments[-1]:
            yield segment.path(names.OFFSET_INDEX)
            yield segment.path(names.TIME_INDEX)

    def synced(self, job: SyncJob) -> None:
        self._unpin(job)
        reached = min(job.end_offset, self._end_offset)
        self.recovery_point = max(self.recovery_point, reached)

    def sync_failed(self, job: SyncJob, error: OSError) -> None:
        self._unpin(job)
        self.state.failed(error)

    def _unpin(self, job: SyncJob) -> None:
        for file in job.files:
            self.files.unpin(file)

    def finish(self) -> None:
        """Before a clean stop: complete the indexes and keep the producers."""
        self.active.finish()
        self.write_snapshot()


def mark_deleted(files: FileCache, segment: Segment) -> list[str]:
    """Rename a segment's files to `.deleted`; their new paths."""
    renamed = []
    suffixes = (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)
    for suffix in suffixes:
        path = segment.path(suffix)
        files.forget(path)
        if files.disk.exists(path):
            files.disk.rename(path, path + names.DELETED)
            renamed.append(path + names.DELETED)
    return renamed
