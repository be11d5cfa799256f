"""One partition's records on disk: a row of segments, of which the last takes the appends.

Leaders enter at `append_as_leader`, followers at `append_as_follower`, readers at `read`.
All calls are synchronous and made on the event loop; a `SyncJob` runs in a thread.
Invariant: start_offset <= end_offset; segments adjoin; offsets and epochs never fall.
"""

import errno
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from posixpath import dirname
from typing import NamedTuple

from suwi.env import Disk, File, FileRegion
from suwi.log import checkpoints, names
from suwi.log.directory_state import DirectoryState
from suwi.log.epochs import LeaderEpochs
from suwi.log.file_cache import FileCache
from suwi.log.producer_loading import find_snapshots, loading_producers, remove_snapshots
from suwi.log.producer_snapshot import encode_snapshot
from suwi.log.producers import Producers
from suwi.log.segment import RELATIVE_OFFSET_MAX, Located, Segment, TornSegment
from suwi.log.steps import TURN, Steps, run_steps
from suwi.log.sync_job import SyncJob
from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaStorageError,
    OffsetOutOfRange,
)
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import LOG_OVERHEAD_BYTES, BatchHeader, batches, compute_crc, place
from suwi.records.record import read_marker

log = logging.getLogger(__name__)

_GONE = frozenset({errno.ENOENT, errno.EBADF})
"""How a file answers that was renamed, removed or closed meanwhile."""
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
SEGMENTS_AT_ONCE = 16
"""How many segments' files are renamed before others have their turn: a millisecond or two."""


class Appended(NamedTuple):
    """Where a batch lies in the log: just appended, or found to be there already."""

    base_offset: Offset
    last_offset: Offset
    is_duplicate: bool = False


class LogSlice(NamedTuple):
    """A readable range of one segment's file, whole batches from its start on.

    To be read or pinned before the next await: compaction may put another file in its place.
    """

    log: "PartitionLog"
    path: str
    position: int
    size_bytes: int

    def read(self) -> bytes:
        try:
            return self.log.files.get(self.path).pread(self.size_bytes, self.position)
        except FileNotFoundError:
            raise  # Retention took the segment; the disk is well.
        except OSError as error:
            raise self.log.failed(error, self.log.generation) from error

    def pin(self) -> tuple[FileRegion, Callable[[], None]]:
        """The range for sending, and what to call when it is sent or given up.

        Raises KafkaStorageError.
        """
        owner, generation = self.log, self.log.generation
        try:
            file = owner.files.pin(self.path)
        except OSError as error:
            raise owner.failed(error, generation) from error
        region = FileRegion(
            file, self.position, self.size_bytes, lambda: owner.generation == generation
        )
        return region, lambda: owner.files.unpin(file)


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
        was_cut: bool = False,
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
        self.start_moved = False
        """Whether it is to be written down where the log starts; reset by whoever does."""
        self.recovery_point = recovery_point
        self.cleaned_to = start_offset
        """Up to where the log is compacted."""
        self.generation = 0
        """Rises when readable bytes may become others: truncation, deletion of the log. (A segment
        that retention or compaction removes stays as it is for those who have it open.)"""
        self.is_closed = False
        """Deleted: its files have other names, and its own may be another log's by now."""
        self.roll_jitter_ms = 0
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._end_offset = segments[-1].next_offset
        self._epochs_written = True
        self._names_version = 1
        self._names_synced = 0
        """Which version of the directory's names survives a power loss."""
        self._truncation_synced = not was_cut
        self.producers_are_known = True
        """Not so while a truncation goes on: nothing may be appended then."""
        self._to_remove: list[str] = []

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

    @property
    def first_base_offset(self) -> Offset:
        """Where its oldest segment starts."""
        return self._bases[0]

    def segments(self) -> list[Segment]:
        return list(self._segments)

    # -- whether it can be used ----------------------------------------------------------------

    def close(self) -> None:
        """It was deleted: whoever still has it may not use it any more."""
        self.is_closed = True
        self.generation += 1

    def check(self) -> None:
        """Raises KafkaStorageError where it was deleted or its data directory is offline."""
        if self.is_closed:
            raise KafkaStorageError(f"{self.partition} was deleted")
        self.state.check()

    def failed(
        self, error: OSError | TornSegment, generation: int, *, always_offline: bool = False
    ) -> KafkaStorageError:
        """Judge a failure, of a call here or of a job in a thread; the error to answer with.

        `generation` is the log's when the work began. Where it was truncated or deleted since, a
        file that is gone is no fault of the disk. Anything else is, even then: a sync reports a
        lost write once, and not to the one whose write it was.
        `always_offline`: what failed cannot be left half done, not even for lack of space.
        """
        is_current = not self.is_closed and generation == self.generation
        if isinstance(error, OSError) and error.errno in _GONE and not is_current:
            return KafkaStorageError(f"{self.partition} has changed meanwhile")
        if always_offline:
            return self.state.take_offline(error)
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            # This log's directory, not the disk; what is in it is as it was.
            log.warning("no access to a log", extra={"dir": self.dir, "reason": str(error)})
            return KafkaStorageError(f"{self.partition}: {error.strerror}")
        return self.state.failed(error)

    @contextmanager
    def guard(self, *, always_offline: bool = False) -> Iterator[None]:
        """Where the log can be used, turn a failure inside into the error to answer with."""
        self.check()
        generation = self.generation
        try:
            yield
        except (OSError, TornSegment) as error:
            raise self.failed(error, generation, always_offline=always_offline) from error

    # -- writing -------------------------------------------------------------------------------

    def append_as_leader(
        self, batch: memoryview, header: BatchHeader, epoch: LeaderEpoch, now_ms: int
    ) -> Appended:
        """Give a validated batch the next offsets and write it. Changes the batch in place.

        Raises OutOfOrderSequence, InvalidProducerEpoch, FencedLeaderEpoch or KafkaStorageError:
        nothing is appended.
        """
        self.check()
        if header.producer_id >= 0:
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(earlier.first_offset, earlier.last_offset, is_duplicate=True)
        base_offset = self._end_offset
        if epoch != self.epochs.latest:
            self._begin_epoch(epoch, base_offset)
        place(batch, base_offset, epoch)
        last_offset = self._write(batch, header, base_offset, now_ms)
        return Appended(base_offset, last_offset)

    def _begin_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        if epoch < self.epochs.latest:
            raise FencedLeaderEpoch(f"epoch {epoch} is over: the log holds {self.epochs.latest}")
        self.assign_epoch(epoch, start)

    def append_as_follower(
        self, records: memoryview, fetched_under: LeaderEpoch, now_ms: int
    ) -> None:
        """Write batches as the leader placed them.

        Raises CorruptMessage where one is damaged, InvalidRecord where they do not follow on or
        their epochs cannot be right; what came before that stays.
        """
        self.check()
        for position, header in batches(records):
            if header.base_offset < self._end_offset:
                raise InvalidRecord(f"offset {header.base_offset} is before {self._end_offset}")
            if not self.epochs.latest <= header.partition_leader_epoch <= fetched_under:
                raise InvalidRecord(f"epoch {header.partition_leader_epoch} cannot be right here")
            if compute_crc(records, position, header.size_bytes) != header.crc:
                raise CorruptMessage(f"the checksum of the batch {header.base_offset} does not fit")
            # Before the append: a crash in between leaves an entry that says nothing false.
            self.assign_epoch(
                LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset)
            )
            batch = records[position : position + header.size_bytes]
            self._write(batch, header, Offset(header.base_offset), now_ms)

    def _write(
        self, batch: memoryview, header: BatchHeader, base_offset: Offset, now_ms: int
    ) -> Offset:
        """Write a batch that lies at `base_offset`; the last offset.

        A leader's `header` is the client's, which does not know its place: most batches need no
        header of their own for that.
        """
        last_offset = Offset(base_offset + header.last_offset_delta)
        marker = read_marker(batch, header) if header.is_control else None
        try:
            segment = self._segments[-1]
            if self._must_roll(segment, header, last_offset, now_ms):
                segment = self.roll(now_ms, self._base_for(base_offset, last_offset))
            segment.append(batch, base_offset, last_offset, header.max_timestamp)
        except (OSError, TornSegment) as error:
            raise self.failed(error, self.generation) from error
        # The batch is in the log: from here on nothing may fail.
        if self.state.is_full:
            self.state.has_space()
        self._end_offset = self.producers.end_offset = Offset(last_offset + 1)
        if header.producer_id >= 0:
            aborted = self.producers.replay(header._replace(base_offset=base_offset), marker)
            if aborted is not None:
                segment.txn_index.append(aborted)
                self._names_version += 1  # The first one made the file.
        return last_offset

    def assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Epoch `epoch` writes from `start` on; written to the checkpoint where it is news."""
        if self.epochs.assign(epoch, start):
            self._epochs_written = False
        self._write_epochs()

    def _write_epochs(self) -> None:
        if self._epochs_written:
            return
        path = f"{self.dir}/{names.LEADER_EPOCHS}"
        try:
            checkpoints.write_epochs(self.files.disk, path, self.epochs.entries())
        except OSError as error:
            raise self.failed(error, self.generation) from error
        self._epochs_written = True
        self._names_version += 1

    def _epochs_shrank(self) -> None:
        """Records went away: that must not fail on a full disk. The file follows when it can."""
        self._epochs_written = False
        try:
            self._write_epochs()
        except KafkaStorageError as error:
            log.warning("leader epochs not written", extra={"dir": self.dir, "reason": str(error)})

    def _must_roll(
        self, segment: Segment, header: BatchHeader, last_offset: Offset, now_ms: int
    ) -> bool:
        size_bytes = segment.size_bytes
        batch_bytes = header.batch_length + LOG_OVERHEAD_BYTES
        if size_bytes == 0:
            return not segment.has_room(batch_bytes, last_offset, 2**62)
        config = self.config
        if size_bytes + batch_bytes > config.segment_bytes:
            return True
        first = segment.first_timestamp
        if first is not None and first >= 0:
            waited_ms = header.max_timestamp - first
        else:
            waited_ms = now_ms - segment.created_ms
        return waited_ms > config.roll_ms - self.roll_jitter_ms or not segment.has_room(
            batch_bytes, last_offset, config.segment_index_bytes
        )

    def _base_for(self, base_offset: Offset, last_offset: Offset) -> Offset:
        """Segments adjoin, so that recovery can see where one lost its end, unless the batch lies
        too far beyond the end for an index."""
        is_near = last_offset - self._end_offset <= RELATIVE_OFFSET_MAX
        return self._end_offset if is_near else base_offset

    def roll(self, now_ms: int, at: Offset | None = None) -> Segment:
        """Start a new segment at the end, or at `at` where offsets are missing before it.

        Raises OSError: then the old one goes on.
        """
        active = self._segments[-1]
        base_offset = self._end_offset if at is None else at
        assert base_offset >= self._end_offset
        if active.base_offset == base_offset:
            return active
        active.finish()
        segment = self._create_segment(base_offset, now_ms)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._end_offset = base_offset
        self.write_snapshot()
        return segment

    def _create_segment(self, base_offset: Offset, now_ms: int) -> Segment:
        self._names_version += 1
        try:
            return Segment(
                self.files,
                self.dir,
                base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                created_ms=now_ms,
                create=True,
            )
        except OSError:
            # An empty segment left behind would hide what the old one still takes in.
            stem = f"{self.dir}/{names.offset_name(base_offset)}"
            remove_files(self.files.disk, mark_deleted(self.files, stem))
            raise

    def write_snapshot(self) -> None:
        """Keep the producers at the end offset. Not vital: the log says it too."""
        if not self.producers_are_known:
            return
        if self._end_offset == self._bases[0] and not self.producers:
            return  # Nobody is known who would have to be remembered.
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
        self.check()
        if offset >= limit:
            return None
        try:
            found = self._locate(offset)
            if found is None:
                return None
            number, batch = found
            segment = self._segments[number]
            end = segment.size_bytes
            if limit < self._upper_bound(number):
                beyond = segment.locate(limit)
                end = beyond.position if beyond is not None else end
        except OSError as error:
            raise self.failed(error, self.generation) from error
        size_bytes = min(bytes_max, end - batch.position)
        if size_bytes < batch.size_bytes:
            if not whole_batch or batch.position + batch.size_bytes > end:
                return None
            size_bytes = batch.size_bytes
        return LogSlice(self, segment.log_path, batch.position, size_bytes)

    def _locate(self, offset: Offset) -> tuple[int, Located] | None:
        """The segment, by number, and the place of the first batch that ends at or after it."""
        for number in range(max(bisect_right(self._bases, offset) - 1, 0), len(self._segments)):
            batch = self._segments[number].locate(offset)
            if batch is not None:
                return number, batch
        return None

    def _upper_bound(self, number: int) -> Offset:
        """The offset that a segment's records are below."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else self._end_offset

    def batch_at_time(self, timestamp: int, from_offset: Offset = Offset(0)) -> LogSlice | None:
        """The first batch that ends at or after `from_offset` and has a record at or after
        `timestamp`; None where there is none.

        A batch may hold the start of the log or `from_offset` in its middle: if the record is
        before it, ask again from the end of the batch on.
        """
        from_offset = max(from_offset, self.start_offset)
        with self.guard():
            for segment in self._segments[max(bisect_right(self._bases, from_offset) - 1, 0) :]:
                batch = segment.locate_time(timestamp, from_offset) if segment.size_bytes else None
                if batch is not None:
                    return LogSlice(self, segment.log_path, batch.position, batch.size_bytes)
        return None

    def batch_of_max_timestamp(self) -> LogSlice | None:
        """The first batch that has the newest timestamp; None in an empty log."""
        with self.guard():
            newest = max(segment.max_timestamp for segment in self._segments)
        return self.batch_at_time(newest) if newest >= 0 else None

    def aborted_between(self, first: Offset, end: Offset) -> list[AbortedTxn]:
        """Aborted transactions with records from `first` up to but without `end`."""
        number = max(bisect_right(self._bases, first) - 1, 0)
        with self.guard():
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
        self.start_moved = True
        if self.epochs.truncate_start(offset):
            self._epochs_shrank()

    def take_oldest(self, count: int) -> list[str]:
        """Take the `count` oldest segments out of the log; the paths of their files to delete.

        The files are renamed to `.deleted` at once and can be removed at leisure.
        """
        if count == 0:
            return []
        self.check()
        assert count < len(self._segments)
        gone = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        # The files first: on a full disk nothing else could be written.
        renamed: list[str] = []
        with self.guard(always_offline=True):
            for segment in gone:
                renamed += mark_deleted(self.files, segment.path(""))
        self.advance_start(self._bases[0])
        return renamed

    def replace(self, old: list[Segment], new: Segment) -> None:
        """A compacted segment takes the place of those it was made from. The files are in place."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == old
        assert old[-1] is not self.active
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        self._names_version += 1

    def truncate_to(self, offset: Offset) -> None:
        """As `truncating`, here and now."""
        run_steps(self.truncating(offset))

    def truncating(self, offset: Offset) -> Steps[None]:
        """Remove the records at and above `offset`; a batch that holds it goes whole.

        After each step the log is a prefix of what it was, `producers` are known again after the
        last one. The recovery point and `cleaned_to` may fall, so their checkpoints must be written
        before the next append.
        Below its first segment nothing is left of the log, and it goes on at `offset`.
        """
        if offset >= self._end_offset:
            return
        self.check()
        yield from self._cutting_segments_above(offset)
        with self._cut():
            while len(self._segments) > 1 and self._bases[-1] > offset:
                self._remove_last_segment()
            if offset < self._bases[0]:
                self._remove_last_segment()
                self._segments.append(self._create_segment(offset, 0))
                self._bases.append(offset)
            self._segments[-1].truncate(offset)
        yield from self.reloading_producers()
        yield from self._removing_files()

    def restart_at(self, offset: Offset) -> None:
        """As `restarting_at`, here and now."""
        run_steps(self.restarting_at(offset))

    def restarting_at(self, offset: Offset) -> Steps[None]:
        """Give up all records and go on at `offset`: the leader has nothing that follows on these.

        As with `truncating`, checkpoints must be written before the next append.
        """
        self.check()
        yield from self._cutting_segments_above(Offset(-1))
        with self._cut():
            while self._segments:
                self._remove_last_segment()
            self._segments.append(self._create_segment(offset, 0))
            self._bases.append(offset)
            self.epochs = LeaderEpochs()
            self._epochs_shrank()
            self.start_offset = self.recovery_point = self.cleaned_to = offset
            self.start_moved = True
        with self.guard(always_offline=True):
            yield partial(remove_snapshots, self.files.disk, self.dir)
        self.producers = Producers(end_offset=offset)
        self.producers_are_known = True
        yield from self._removing_files()

    def _cutting_segments_above(self, offset: Offset) -> Steps[None]:
        """Remove most of the segments above `offset`, some at a time and the last ones first: at
        any time what is left is a log without holes."""
        while len(self._bases) - bisect_right(self._bases, offset) > SEGMENTS_AT_ONCE:
            with self._cut():
                for _ in range(SEGMENTS_AT_ONCE):
                    self._remove_last_segment()
            yield TURN

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Readable bytes go: whoever has this log in hand has to look again."""
        self.generation += 1
        self._names_version += 1
        self._truncation_synced = False
        self.producers_are_known = False
        with self.guard(always_offline=True):
            yield
            self._end_offset = self._segments[-1].next_offset
            self.recovery_point = min(self.recovery_point, self._end_offset)
            if self._end_offset < self.start_offset:
                self.start_offset = self._end_offset
                self.start_moved = True
            self.cleaned_to = min(self.cleaned_to, self._end_offset)
            if self.epochs.truncate_end(self._end_offset):
                self._epochs_shrank()

    def reloading_producers(self) -> Steps[None]:
        """Find out what is known of producers at the end of a log that has become shorter."""
        with self.guard(always_offline=True):
            snapshots = yield partial(find_snapshots, self.files.disk, self.dir)
            self.producers = yield from loading_producers(
                self.files, self.dir, self._segments, self.start_offset, self._end_offset, snapshots
            )
        self.producers_are_known = True

    def _removing_files(self) -> Steps[None]:
        """Truncated segments have other names by now; freeing a large file takes its time."""
        paths, self._to_remove = self._to_remove, []
        if not paths:
            return
        try:
            yield partial(remove_files, self.files.disk, paths)
        except OSError as error:
            log.warning("cannot remove", extra={"dir": self.dir, "reason": str(error)})

    def forget_epochs_beyond_end(self) -> None:
        """An epoch that began at the end and wrote nothing is no part of this log's history."""
        if self.epochs.truncate_end(self._end_offset):
            self._epochs_shrank()

    def _remove_last_segment(self) -> None:
        """The last one first: whatever a crash leaves behind is without holes."""
        segment = self._segments.pop()
        self._bases.pop()
        self._to_remove += mark_deleted(self.files, segment.path(""))

    # -- durability ----------------------------------------------------------------------------

    @property
    def truncation_is_safe(self) -> bool:
        """Whether no power loss can bring back what was truncated, where other records are now."""
        return self._truncation_synced

    @property
    def unsynced(self) -> bool:
        return self.recovery_point < self._end_offset or not self._truncation_synced

    def sync_job(self, up_to: Offset | None = None) -> SyncJob | None:
        """What must be synced for everything below `up_to` (the end) to survive a power loss.

        Raises KafkaStorageError where that cannot even begin.
        """
        end_offset = self._end_offset if up_to is None else up_to
        if end_offset <= self.recovery_point and self._truncation_synced:
            return None
        self.check()
        self._write_epochs()
        names_changed = self._names_version > self._names_synced
        return SyncJob(
            end_offset,
            self.generation,
            self.files.disk,
            self._pin_all(self._paths_to_sync(end_offset)),
            tuple(f"{self.dir}/{name}" for name in names.SMALL_FILES) if names_changed else (),
            (self.dir, dirname(self.dir)) if names_changed else (),
            self._names_version,
        )

    def _paths_to_sync(self, end_offset: Offset) -> Iterator[str]:
        # Where a segment starts at the recovery point the one before it belongs to this too: it
        # was finished since, or cut by a truncation.
        first = max(bisect_left(self._bases, self.recovery_point) - 1, 0)
        for segment in self._segments[first:]:
            if segment.base_offset >= end_offset and self._truncation_synced:
                return
            yield segment.log_path
            if segment is not self._segments[-1]:
                yield segment.path(names.OFFSET_INDEX)
                yield segment.path(names.TIME_INDEX)
            # Of what is synced it must be known for ever which of it was aborted.
            if segment.txn_index.entries():
                yield segment.txn_index.path

    def _pin_all(self, paths: Iterable[str]) -> tuple[File, ...]:
        pinned: list[File] = []
        try:
            pinned.extend(self.files.pin(path) for path in paths)
        except OSError as error:
            for file in pinned:
                self.files.unpin(file)
            raise self.failed(error, self.generation) from error
        return tuple(pinned)

    def synced(self, job: SyncJob) -> None:
        self._unpin(job)
        if job.generation != self.generation:
            return  # What the job synced was truncated; what is there now may not be safe.
        self.recovery_point = max(self.recovery_point, job.end_offset)
        if job.dirs:
            self._names_synced = max(self._names_synced, job.names_version)
            self._truncation_synced = True

    def sync_failed(self, job: SyncJob, error: OSError) -> None:
        """Whatever the reason, a full disk too: what was not synced may be lost."""
        self.sync_abandoned(job)
        self.failed(error, job.generation, always_offline=True)

    def sync_abandoned(self, job: SyncJob) -> None:
        """It says nothing of what is on the disk."""
        self._unpin(job)

    def _unpin(self, job: SyncJob) -> None:
        for file in job.files:
            self.files.unpin(file)

    def finish(self) -> None:
        """Before a clean stop: complete the indexes, keep epochs and producers.

        Raises KafkaStorageError: then the stop is not clean.
        """
        with self.guard():
            self.active.finish()
        self._write_epochs()
        self.write_snapshot()


_ALL_FILES = (*names.SEGMENT_FILES, names.SNAPSHOT)


def mark_deleted(files: FileCache, stem: str, suffixes: tuple[str, ...] = _ALL_FILES) -> list[str]:
    """Rename a segment's files to `.deleted`; their new paths. `stem` is their common path."""
    renamed = []
    for suffix in suffixes:
        path = stem + suffix
        files.forget(path)
        try:
            files.disk.rename(path, path + names.DELETED)
        except FileNotFoundError:
            continue
        renamed.append(path + names.DELETED)
    return renamed


def remove_files(disk: Disk, paths: list[str]) -> None:
    """Remove those that are still there; in a thread."""
    for path in paths:
        with suppress(FileNotFoundError):
            disk.remove(path)
