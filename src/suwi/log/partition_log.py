"""One partition's records on disk: a sequence of segments, of which the last one is active.

Leaders enter at `append_as_leader`, followers at `append_as_follower`, readers at `read`. All calls
are synchronous and made on the event loop. What survives a power loss is in `durability`.
Invariant: start_offset <= end_offset; segments are contiguous; offsets and epochs never decrease.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from suwi.log.damage import Damage, Rereads
from suwi.log.directory_state import PartitionDirectory
from suwi.log.leader_epoch_cache import EpochCheckpoint
from suwi.log.log_durability import LogDurability
from suwi.log.log_segments import SEGMENTS_AT_ONCE, LogSegments, LogSlice, must_roll
from suwi.log.producer_snapshot import (
    find_snapshots,
    loading_producers,
    remove_snapshots,
    write_snapshot,
)
from suwi.log.producer_state import ProducerStates
from suwi.log.segment import Segment, TornSegment
from suwi.log.sliced_work import TURN, Steps
from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import CorruptMessage, InvalidRecord, OffsetOutOfRange
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader, batches, compute_crc, place
from suwi.records.record import read_marker


class Appended(NamedTuple):
    """The offsets of a batch: just appended, or already in the log."""

    base_offset: Offset
    last_offset: Offset
    is_duplicate: bool = False


class PartitionLog:
    __slots__ = (
        "_epoch_checkpoint",
        "_rereads",
        "_segments",
        "cleaned_to",
        "config",
        "dir",
        "directory",
        "durability",
        "epochs",
        "files",
        "may_have_gaps",
        "partition",
        "producers",
        "producers_are_known",
        "roll_jitter_ms",
        "start_moved",
        "start_offset",
        "state",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        config: TopicConfig,
        *,
        segments: list[Segment],
        producers: ProducerStates,
        epochs: EpochCheckpoint,
        start_offset: Offset,
        recovery_point: Offset,
        was_cut: bool = False,
        may_have_gaps: bool = False,
        damages: Iterable[Damage] = (),
    ) -> None:
        self.directory = directory
        self.files = directory.files
        self.dir = directory.path
        self.partition = directory.partition
        self.state = directory.state
        self.config = config
        self.producers = producers
        self.producers_are_known = True
        """False during a truncation: nothing may be appended then."""
        self.epochs = epochs.epochs
        self.start_offset = start_offset
        self.start_moved = False
        """Whether the start offset must be written to its checkpoint; reset by the writer."""
        self.cleaned_to = start_offset
        """The log is compacted up to here."""
        self.may_have_gaps = may_have_gaps
        """Whether offsets between segments may be missing: the log was compacted at some time."""
        self.roll_jitter_ms = 0
        self._segments = LogSegments(directory, segments)
        self._epoch_checkpoint = epochs
        self.durability = LogDurability(
            directory, self._segments, epochs, recovery_point, truncation_is_safe=not was_cut
        )
        for damage in damages:
            self.add_damage(damage)
        self._rereads = Rereads()

    # -- state ---------------------------------------------------------------------------------

    @property
    def end_offset(self) -> Offset:
        return self._segments.end_offset

    @property
    def active(self) -> Segment:
        return self._segments.all[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.all)

    @property
    def recovery_point(self) -> Offset:
        return self.durability.recovery_point

    @property
    def must_sync_first(self) -> bool:
        """Whether a replica may acknowledge only what is synced: with flush.messages=1, and while a
        power loss could bring back records that were truncated."""
        return self.config.flush_messages == 1 or not self.durability.truncation_is_safe

    @property
    def safe_end(self) -> Offset:
        """The end offset that a replica may acknowledge."""
        return self.recovery_point if self.must_sync_first else self._segments.end_offset

    @property
    def first_base_offset(self) -> Offset:
        """The base offset of the oldest segment."""
        return self._segments.bases[0]

    def segments(self, from_offset: Offset = Offset(0)) -> list[Segment]:
        """The segment that contains `from_offset`, and all later ones."""
        return self._segments.holding(from_offset)

    @property
    def generation(self) -> int:
        return self.directory.generation

    def close(self) -> None:
        self.directory.close()
        self._segments.forget_damages()
        self.state.set_aside.pop(self.partition, None)

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Records that are damaged or missing on the disk, in order."""
        return self._segments.damages

    def add_damage(self, damage: Damage) -> bool:
        """See `LogSegments.add_damage`."""
        if damage.end <= self.start_offset:
            self._segments.hide_damage(damage)
            return False
        return self._segments.add_damage(damage)

    def replacement_waits_for(self, obstacle: str | None) -> bool:
        """See `LogSegments.replacement_waits_for`."""
        return self._segments.replacement_waits_for(obstacle)

    def check(self) -> None:
        """Raises KafkaStorageError if the log was deleted or its data directory is offline."""
        self.directory.check()

    # -- writing -------------------------------------------------------------------------------

    def append_as_leader(
        self, batch: memoryview, header: BatchHeader, epoch: LeaderEpoch, now_ms: int
    ) -> Appended:
        """Assign the next offsets to a validated batch and write it. Changes the batch in place.

        Raises OutOfOrderSequence, InvalidProducerEpoch, FencedLeaderEpoch or KafkaStorageError:
        then nothing is appended.
        """
        self.directory.check()
        if header.producer_id >= 0:
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(earlier.first_offset, earlier.last_offset, is_duplicate=True)
        base_offset = self._segments.end_offset
        if epoch != self.epochs.latest or not self._epoch_checkpoint.is_written:
            self._epoch_checkpoint.begin(epoch, base_offset)
        place(batch, base_offset, epoch)
        last_offset = self._write(batch, header, base_offset, now_ms)
        return Appended(base_offset, last_offset)

    def append_as_follower(
        self, records: memoryview, fetched_under: LeaderEpoch, now_ms: int
    ) -> None:
        """Write batches with the offsets that the leader assigned.

        Raises CorruptMessage for a damaged batch, InvalidRecord if offsets or epochs are out of
        order; the batches before it stay.
        """
        self.directory.check()
        for position, header in batches(records):
            if header.base_offset < self._segments.end_offset:
                raise InvalidRecord(f"offset {header.base_offset} is before {self.end_offset}")
            if not self.epochs.latest <= header.partition_leader_epoch <= fetched_under:
                raise InvalidRecord(f"leader epoch {header.partition_leader_epoch} is out of order")
            if compute_crc(records, position, header.size_bytes) != header.crc:
                raise CorruptMessage(f"the checksum of the batch {header.base_offset} is wrong")
            # Before the append: after a crash in between, the entry is still correct.
            self._epoch_checkpoint.assign(
                LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset)
            )
            batch = records[position : position + header.size_bytes]
            self._write(batch, header, Offset(header.base_offset), now_ms)

    def _write(
        self, batch: memoryview, header: BatchHeader, base_offset: Offset, now_ms: int
    ) -> Offset:
        """Write a batch at `base_offset`. Returns its last offset.

        On a leader, `header` is as the client sent it, without the assigned offset.
        """
        last_offset = Offset(base_offset + header.last_offset_delta)
        marker = read_marker(batch, header) if header.is_control else None
        segments = self._segments
        try:
            segment = segments.all[-1]
            if must_roll(segment, self.config, self.roll_jitter_ms, header, last_offset, now_ms):
                segment = self.roll(now_ms, segments.base_for(base_offset, last_offset))
            segment.append(batch, base_offset, last_offset, header.max_timestamp)
        except (OSError, TornSegment) as error:
            raise self.directory.failed(error, self.generation) from error
        # The batch is in the log: from here on nothing may fail.
        if self.state.is_full:
            self.state.has_space()
        segments.end_offset = self.producers.end_offset = Offset(last_offset + 1)
        if header.producer_id >= 0:
            aborted = self.producers.replay(header._replace(base_offset=base_offset), marker)
            if aborted is not None:
                segment.txn_index.append(aborted)
                self.directory.names_version += 1  # The first entry created the file.
        return last_offset

    def assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Epoch `epoch` starts at `start`; writes the checkpoint if that is new."""
        self._epoch_checkpoint.assign(epoch, start)

    def roll(self, now_ms: int, at: Offset | None = None) -> Segment:
        """Start a new segment at the end, or at `at` if offsets before it are missing.

        Raises OSError: then the old segment stays active.
        """
        segments = self._segments
        active = segments.all[-1]
        base_offset = segments.end_offset if at is None else at
        assert base_offset >= segments.end_offset
        if active.base_offset == base_offset:
            return active
        active.finish()
        segment = segments.add(base_offset, self.config.index_interval_bytes, now_ms)
        segments.end_offset = base_offset
        self.write_snapshot()
        return segment

    def write_snapshot(self) -> None:
        """Write a snapshot of the producer state at the end offset."""
        if not self.producers_are_known:
            return
        if self.end_offset == self.first_base_offset and not self.producers:
            return  # There is no producer state.
        write_snapshot(self.files.disk, self.dir, self.end_offset, self.producers)

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, offset: Offset, bytes_max: int, limit: Offset, *, whole_batch: bool
    ) -> LogSlice | None:
        """Batches from the one that contains `offset` on, up to but excluding offset `limit`.

        At most `bytes_max` bytes, but with `whole_batch` at least the first batch; the last one may
        be incomplete. None if there is nothing to read. Raises OffsetOutOfRange, and
        KafkaStorageError where the log is damaged.
        """
        if not self.start_offset <= offset <= self._segments.end_offset:
            raise OffsetOutOfRange(
                f"{self.partition}: offset {offset} is not within "
                f"{self.start_offset} to {self.end_offset}"
            )
        self.directory.check()
        if offset >= limit:
            return None
        if self._segments.damages:
            self._segments.check_readable(offset)
        try:
            found = self._segments.find(offset, bytes_max, limit, whole_batch)
        except OSError as error:
            raise self.directory.failed(error, self.generation) from error
        except CorruptMessage:
            self.state.suspects[self.partition] = offset
            raise
        if found is not None and self._rereads.are_many(offset):
            self.state.suspects[self.partition] = offset
        return found

    def aborted_between(
        self, first: Offset, end: Offset, found: LogSlice | None = None
    ) -> list[AbortedTxn]:
        """Those with records from `first` up to `end` or, if earlier, the end of the slice read."""
        with self.directory.guard():
            return self._segments.aborted_between(first, end, found)

    def reading_timestamps(self, until: int | None = None) -> Steps[None]:
        """Read the newest timestamps of all segments, or up to the first at or after `until`.

        A segment written by an earlier process reads its newest timestamp from its files. This goes
        before a lookup by time, in slices: there may be thousands. Yields only `TURN`. Raises
        KafkaStorageError.
        """
        while True:
            read = 0
            with self.directory.guard():
                # Segments may have been deleted or replaced in the meantime, hence from the start.
                for segment in self._segments.all:
                    if not segment.knows_max_timestamp:
                        if read == SEGMENTS_AT_ONCE:
                            break
                        read += 1
                    newest = segment.max_timestamp
                    if until is not None and newest >= until:
                        return
                else:
                    return
            yield TURN

    def batch_at_time(self, timestamp: int, from_offset: Offset = Offset(0)) -> LogSlice | None:
        """The first batch that ends at or after `from_offset` and has a record at or after
        `timestamp`; None if there is none.

        The start of the log, or `from_offset`, may be inside the batch: if the record is before it,
        call again with the end of the batch.
        """
        from_offset = max(from_offset, self.start_offset)
        with self.directory.guard():
            for segment in self._segments.holding(from_offset):
                try:
                    batch = (
                        segment.locate_time(timestamp, from_offset) if segment.size_bytes else None
                    )
                except CorruptMessage as error:
                    if error.offset is not None:
                        self.state.suspects[self.partition] = Offset(error.offset)
                    raise
                if batch is not None:
                    return LogSlice(
                        self.directory, segment.log_path, batch.position, batch.size_bytes
                    )
        return None

    def batch_of_max_timestamp(self) -> LogSlice | None:
        """The first batch with the newest timestamp; None in an empty log."""
        with self.directory.guard():
            newest = max(segment.max_timestamp for segment in self._segments.all)
        return self.batch_at_time(newest) if newest >= 0 else None

    # -- removing ------------------------------------------------------------------------------

    def advance_start(self, offset: Offset) -> None:
        """Raise the start offset for readers. Retention removes the segments below it."""
        if offset <= self.start_offset:
            return
        assert offset <= self.end_offset
        self.start_offset = offset
        self.start_moved = True
        self._epoch_checkpoint.truncate_start(offset)
        self._segments.forget_damages(lambda damage: damage.end <= offset, stay_in_file=True)

    def remove_oldest(self, count: int) -> list[str]:
        """Remove the `count` oldest segments. Returns the paths of their files.

        The files are renamed to `.deleted` at once and can be removed later.
        """
        if count == 0:
            return []
        self.check()
        # The files first: on a full disk nothing else could be written.
        renamed = self._segments.remove_oldest(count)
        self.advance_start(self.first_base_offset)
        return renamed

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace segments by the one compacted from them. The files are already in place."""
        self._segments.replace(old, new)

    def truncating(self, offset: Offset) -> Steps[None]:
        """Remove the records at and above `offset`; a batch that contains it is removed completely.

        After each step the log is a prefix of the original; the producer state is valid again after
        the last step. Offsets may decrease: checkpoints must be written before the next append.
        Below the first segment the log becomes empty and continues at `offset`. Raises
        CorruptMessage if `offset` is behind an unreadable header; then nothing has changed.
        """
        if offset >= self.end_offset:
            return
        try:
            with self.directory.guard():
                self._segments.holding(offset)[0].locate(offset)
        except CorruptMessage:
            self.state.suspects[self.partition] = offset  # Behind known damage it can be found.
            raise
        yield from self._removing_segments_above(offset)
        with self.directory.guard():
            self._segments.holding(offset)[0].open_files()
        with self._truncation():
            self._segments.truncate(offset, self.config.index_interval_bytes)
        yield from self.reloading_producers()
        yield from self._segments.removing_files()

    def restarting_at(self, offset: Offset, *, keep_files: bool = False) -> Steps[None]:
        """Remove all records and continue at `offset`: the leader has nothing that follows them.

        As with `truncating`, checkpoints must be written before the next append. `keep_files`: set
        the segment files aside, because the log is damaged and its new copy is not complete yet.
        """
        self.check()
        yield from self._removing_segments_above(Offset(-1), keep_files=keep_files)
        with self._truncation():
            self._segments.restart_at(
                offset, self.config.index_interval_bytes, keep_files=keep_files
            )
            self._epoch_checkpoint.clear()
            self.start_offset = self.durability.recovery_point = self.cleaned_to = offset
            self.start_moved = True
        with self.directory.guard(always_offline=True):
            yield partial(remove_snapshots, self.files.disk, self.dir)
        self.producers = ProducerStates(end_offset=offset)
        self.producers_are_known = True
        yield from self._segments.removing_files()

    def _removing_segments_above(self, offset: Offset, *, keep_files: bool = False) -> Steps[None]:
        """Remove most segments above `offset` in slices, the last first: never leaves a hole."""
        while self._segments.count_above(offset) > SEGMENTS_AT_ONCE:
            with self._truncation():
                self._segments.remove_last(SEGMENTS_AT_ONCE, keep_files=keep_files)
            yield TURN

    @contextmanager
    def _truncation(self) -> Iterator[None]:
        """Wraps the removal of readable bytes; adjusts start offset, cleaner offset and epochs."""
        self.producers_are_known = False
        with self.durability.truncation():
            yield
        end = self.end_offset
        if end < self.start_offset:
            self.start_offset, self.start_moved = end, True
        self.cleaned_to = min(self.cleaned_to, end)
        self._epoch_checkpoint.truncate_end(end)

    def reloading_producers(self) -> Steps[None]:
        """Load the producer state at the end of a truncated log. If that fails, for example for
        want of descriptors, nothing can be appended until a later attempt succeeds."""
        with self.directory.guard():
            snapshots = yield partial(find_snapshots, self.files.disk, self.dir)
            segments, start, end = self._segments.all, self.first_base_offset, self.end_offset
            self.producers = yield from loading_producers(
                self.files, self.dir, segments, start, end, snapshots
            )
        self.producers_are_known = True

    def forget_epochs_beyond_end(self) -> None:
        """Remove an epoch that started at the end and wrote nothing: it is not part of this log."""
        self._epoch_checkpoint.truncate_end(self.end_offset)

    def finish(self) -> None:
        """Before a clean shutdown: complete the indexes, write epochs and producer state.

        Raises KafkaStorageError: then the shutdown is not clean.
        """
        with self.directory.guard():
            self.active.finish()
        self._epoch_checkpoint.write()
        self.write_snapshot()
