"""Opens a partition's directory: checks it, repairs indexes, truncates to a valid prefix.

`opening_log` is the entrance. After a clean shutdown it reads names, sizes and the last index
entries; after an unclean one it checks every batch from the recovery point on.
Invariant: the returned log is a prefix of what was written, every checked batch is complete, and
what is damaged in it is known.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from suwi.env import File
from suwi.log import checkpoints, names
from suwi.log.batch_scan import Row, first_header, scan_headers, scan_rows
from suwi.log.cleaned_segment import complete_swaps
from suwi.log.damage import Damage
from suwi.log.directory_state import DirectoryState, PartitionDirectory
from suwi.log.file_cache import FileCache
from suwi.log.leader_epoch_cache import EpochCheckpoint, LeaderEpochCache
from suwi.log.log_segments import SEGMENTS_AT_ONCE, mark_deleted, remove_files
from suwi.log.partition_log import PartitionLog
from suwi.log.producer_snapshot import (
    loading_producers,
    remove_stray_snapshots,
    write_snapshot,
)
from suwi.log.producer_state import ProducerStates
from suwi.log.segment import RELATIVE_OFFSET_MAX, Segment
from suwi.log.segment_check import NO_END, SegmentCheck, SegmentFile, comparing_neighbours
from suwi.log.sliced_work import TURN, Steps
from suwi.log.txn_index import AbortedTxn
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import HEADER_BYTES, BatchHeader, read_header
from suwi.records.record import read_marker

log = logging.getLogger(__name__)

_LEFTOVERS = (names.DELETED, ".tmp")
_EPOCH_UNKNOWN = 2**31 - 1
_INDEXES = (names.OFFSET_INDEX, names.TIME_INDEX)


class OpenOptions(NamedTuple):
    """What is known about a log before its directory is read."""

    now_ms: int
    clean: bool
    """Whether the last shutdown was clean: then batches are not checked."""
    start_offset: Offset = Offset(0)
    recovery_point: Offset = Offset(0)
    lost_power: bool = True
    """Whether bytes after the recovery point may be missing. If not, only the last write can be
    incomplete: any other invalid batch is damaged."""
    leader_epoch_max: LeaderEpoch | None = None
    """The newest leader epoch in the image; a batch with a later one is damaged."""
    was_compacted: bool = False
    """Whether the log may have gaps although it is not compacted now."""
    is_adopted: bool = False
    """Whether Apache Kafka may have written the log: its compaction also leaves gaps between
    segments."""


def opening_log(
    files: FileCache,
    directory: str,
    partition: TopicPartition,
    config: TopicConfig,
    state: DirectoryState,
    options: OpenOptions,
) -> Steps[PartitionLog]:
    """Open or create a partition's log. Raises OSError."""
    files.disk.make_dirs(directory)
    own = PartitionDirectory(files, directory, partition, state)
    segments, snapshots, has_set_aside = yield from _finding_segments(
        files, directory, config, options
    )
    if has_set_aside:
        state.set_aside[partition] = None
    epochs_path = f"{directory}/{names.LEADER_EPOCHS}"
    saved_epochs = checkpoints.read_epochs(files.disk, epochs_path)
    epochs = LeaderEpochCache(saved_epochs)
    first = yield from _finding_first_to_recover(segments, config, options, own)
    if _lacks_epochs(saved_epochs, segments, options):
        if saved_epochs is None:
            log.warning("leader epochs missing, reading the log", extra={"path": epochs_path})
        first = 0
    producers = None
    damages: list[Damage] = []
    if first is not None:
        recovery = Recovery(files, directory, config, options, epochs, snapshots, state)
        producers = yield from recovery.run(segments, first)
        damages = recovery.damages
    end = segments[-1].next_offset
    start = Offset(max(min(options.start_offset, end), segments[0].base_offset))
    # An epoch that starts at the end has no records; they may have been truncated.
    epochs.truncate_end(end)
    epochs.truncate_start(start)
    # Also an empty list where there is no file yet.
    epochs_file = EpochCheckpoint(own, epochs, is_written=epochs.entries() == saved_epochs)
    epochs_file.write_if_possible()
    if producers is None:
        first_base = segments[0].base_offset
        if end > first_base and end not in snapshots:
            log.warning("producer snapshot missing, reading the log", extra={"path": directory})
        producers = yield from loading_producers(
            files, directory, segments, first_base, end, snapshots
        )
    may_have_gaps = _may_have_gaps(config, options)
    if not may_have_gaps:
        damages = damages + (yield from comparing_neighbours(files, segments, start, epochs))
    bases = (segment.base_offset for segment in segments)
    remove_stray_snapshots(files.disk, directory, snapshots, bases)
    return PartitionLog(
        own,
        config,
        segments=segments,
        producers=producers,
        epochs=epochs_file,
        start_offset=start,
        recovery_point=end if options.clean else Offset(min(options.recovery_point, end)),
        was_cut=first is not None,
        may_have_gaps=may_have_gaps,
        damages=damages,
    )


def _may_have_gaps(config: TopicConfig, options: OpenOptions) -> bool:
    return config.is_compacted or options.was_compacted or options.is_adopted


def _finding_segments(
    files: FileCache, directory: str, config: TopicConfig, options: OpenOptions
) -> Steps[tuple[list[Segment], list[Offset], bool]]:
    """The existing segments, or a new first one, the offsets of the snapshots, and whether files of
    a damaged log were set aside. Each segment has all its files, not yet checked."""
    disk = files.disk
    found = disk.list_dir(directory)
    if any(name.endswith((names.SWAP, names.CLEANED)) for name in found):
        complete_swaps(disk, directory)
        found = disk.list_dir(directory)
    for name in found:
        if name.endswith(_LEFTOVERS):
            disk.remove(f"{directory}/{name}")
    offsets = names.offsets_by_suffix(found)
    yield TURN
    snapshots = offsets.get(names.SNAPSHOT, [])
    _remove_orphans(files, directory, offsets)
    new_segment = partial(
        Segment,
        files,
        directory,
        index_interval_bytes=config.index_interval_bytes,
        created_ms=options.now_ms,
    )
    present = {suffix: set(offsets.get(suffix, ())) for suffix in _INDEXES}
    segments: list[Segment] = []
    has_gaps = _may_have_gaps(config, options)
    for base in offsets.get(names.LOG, []):
        stem = f"{directory}/{names.offset_name(base)}"
        is_empty = disk.size(stem + names.LOG) == 0
        if is_empty and segments and _reaches_beyond(segments[-1], base, has_gaps):
            # Left by a failed roll: it would hide records of the segment before it.
            remove_files(disk, mark_deleted(files, stem))
            snapshots = [offset for offset in snapshots if offset != base]
            continue
        for suffix in _INDEXES:
            if base not in present[suffix]:
                disk.open(stem + suffix, create=True).close()
        segments.append(new_segment(base))
        if len(segments) % SEGMENTS_AT_ONCE == 0:
            yield TURN
    if not segments:
        segments.append(new_segment(options.start_offset, create=True))
    return segments, snapshots, any(suffix.endswith(names.DAMAGED) for suffix in offsets)


def _lacks_epochs(
    saved: list[tuple[LeaderEpoch, Offset]] | None, segments: list[Segment], options: OpenOptions
) -> bool:
    """Whether the leader epochs must be read from the batches.

    A crash can leave epochs that start at a start offset that was not persisted.
    """
    if saved is None:
        return any(segment.size_bytes for segment in segments)
    start = max(options.start_offset, segments[0].base_offset)
    return not options.clean and len(saved) > 0 and saved[0][1] > start


def _reaches_beyond(segment: Segment, base: Offset, has_gaps: bool) -> bool:
    try:
        if segment.next_offset <= base:
            return False
        found = segment.locate(base)
    except CorruptMessage:
        return False
    # The roll began at the end of the log. A batch that begins elsewhere is damaged, unless there
    # may be a gap before it.
    return found is not None and (
        found.base_offset == base or (has_gaps and found.base_offset > base)
    )


def _remove_orphans(files: FileCache, directory: str, offsets: dict[str, list[Offset]]) -> None:
    """Remove index files without a log: the removal of their segment was interrupted."""
    bases = set(offsets.get(names.LOG, ()))
    for suffix in (*_INDEXES, names.TXN_INDEX):
        for base in offsets.get(suffix, ()):
            if base not in bases:
                files.disk.remove(f"{directory}/{names.offset_name(base)}{suffix}")


def _finding_first_to_recover(
    segments: list[Segment], config: TopicConfig, options: OpenOptions, own: PartitionDirectory
) -> Steps[int | None]:
    """The first segment whose batches must be checked; None if none must be.

    Segments before the recovery point were synced: only their indexes are checked.
    """
    first = len(segments)
    if not options.clean:
        reached = [s for s in segments if s.base_offset <= options.recovery_point]
        first = max(len(reached) - 1, 0)
    for number, segment in enumerate(segments[:first]):
        if not segment.txn_index.is_sane(segment.base_offset):
            path = segment.txn_index.path
            log.warning("transaction index damaged, rebuilding it", extra={"path": path})
            return number
        if _lacks_indexes(segment, config):
            yield from _rebuilding(segment, own)
        if number % SEGMENTS_AT_ONCE == SEGMENTS_AT_ONCE - 1:
            yield TURN
    if first < len(segments):
        return first
    last = segments[-1]
    try:
        if not 0 <= last.next_offset - last.base_offset <= RELATIVE_OFFSET_MAX + 1:
            raise CorruptMessage(f"{last.log_path} ends at the offset {last.next_offset}")
    except CorruptMessage as error:
        log.warning(
            "segment damaged after a clean shutdown",
            extra={"path": segments[-1].path(""), "reason": str(error)},
        )
        return len(segments) - 1
    return None


def _lacks_indexes(segment: Segment, config: TopicConfig) -> bool:
    """Whether an index is empty that should not be. Entries are verified when they are used."""
    if segment.size_bytes == 0:
        return False
    try:
        if len(segment.time_index) == 0 and segment.first_timestamp != NO_TIMESTAMP:
            return True
        # The first batches need no entry, however large the last one of them is.
        unindexed_bytes_max = 2 * config.index_interval_bytes
        return (
            len(segment.offset_index) == 0
            and segment.size_bytes > unindexed_bytes_max
            and segment.has_batch_beyond(unindexed_bytes_max)
        )
    except CorruptMessage:
        return True


def _rebuilding(segment: Segment, own: PartitionDirectory) -> Steps[None]:
    log.warning("index missing, rebuilding it", extra={"path": segment.path("")})
    try:
        for _ in segment.rebuilding_indexes():
            yield TURN
    except CorruptMessage as error:
        # The batches before it are indexed. Rebuilding an index does not truncate the log.
        own.found_damage(f"{segment.log_path}: {error}")


class _Found(NamedTuple):
    """What a recovery builds anew, as it was before."""

    size_bytes: int
    index_entries: bytes
    """Of the offset index."""
    aborted: list[AbortedTxn] | None
    """None if the transaction index is damaged."""

    @classmethod
    def of(cls, segment: Segment) -> "_Found":
        index, aborted = segment.offset_index, segment.txn_index
        is_sane = aborted.is_sane(segment.base_offset)
        entries = b""
        with suppress(OSError):
            entries = index.entries(0, len(index))
        return cls(segment.size_bytes, entries, aborted.entries() if is_sane else None)


class Recovery:
    """Checks the batches after the recovery point and stops before the first invalid one.

    What was synced, and without a power loss all that was written, is there: an invalid batch with
    whole ones after it is damaged, not torn, and nothing is removed because of it. Readers are
    refused its offsets. In the last segment an invalid batch that no whole one follows may be an
    unfinished write: the log ends before it.
    """

    def __init__(
        self,
        files: FileCache,
        directory: str,
        config: TopicConfig,
        options: OpenOptions,
        epochs: LeaderEpochCache,
        snapshots: list[Offset],
        state: DirectoryState,
    ) -> None:
        """`snapshots`: those in the directory, in order; kept in step with the directory."""
        self._state = state
        self._snapshots = snapshots
        self._files = files
        self._dir = directory
        self._has_gaps = config.is_compacted or options.was_compacted
        self._options = options
        self._was_written = options.clean or not options.lost_power
        """Whether all that was written is there; only the last write may be incomplete."""
        self._complete_to = options.recovery_point
        """What was written below this offset is there."""
        self._epochs = epochs
        self._epoch_starts = dict(epochs.entries())
        self._last_epoch = -1
        self._gaps = 0
        self._last_seen: BatchHeader | None = None
        self.damages: list[Damage] = []

    def run(self, segments: list[Segment], first: int) -> Steps[ProducerStates]:
        """Check `segments` from number `first` on; remove invalid ones from the list."""
        if first:
            self._last_epoch = _last_epoch_of(self._files, segments[first - 1])
            known = self._epochs.epoch_at(Offset(segments[first].base_offset - 1))
            if known >= 0:  # That of the batch is outside its checksum, and was not checked.
                self._last_epoch = min(self._last_epoch, known)
        before = bisect_right(self._snapshots, segments[first].base_offset)
        earlier = self._snapshots[before:]
        del self._snapshots[before:]
        if self._was_written:
            self._complete_to = max(self._complete_to, segments[-1].base_offset)
        producers = yield from self._loading_producers_before(segments, first)
        for number in range(first, len(segments)):
            following = segments[number + 1] if number + 1 < len(segments) else None
            segment = segments[number]
            found = _Found.of(segment)
            while not (yield from self._recovering_segment(segment, producers, following, found)):
                # What was applied of damaged batches is undone: repeat without them.
                producers = yield from self._loading_producers_before(segments, number)
            self.damages += segment.damages
            is_whole = segment.size_bytes == found.size_bytes
            if following is not None and not (is_whole and self._adjoin(segment, following)):
                yield from self._dropping(segments, number + 1)
                break
            end = following.base_offset if following is not None else segment.next_offset
            snapshot = self._behind_damage(segment, end, earlier)
            if snapshot is not None:
                # It knows the batches and the markers that cannot be read any more.
                self._snapshots.append(snapshot)
                producers = yield from self._loading_producers(segments, number + 1, end)
            if following is None:
                break
            self._keep(segment.finish)
            if self._options.clean or end < self._options.recovery_point:
                yield segment.txn_index.sync  # No later sync includes it.
            if producers:
                # Retention may remove this segment before the next crash.
                yield partial(write_snapshot, self._files.disk, self._dir, end, producers)
                if self._snapshots[-1:] != [end]:
                    self._snapshots.append(end)
        self._keep(segments[-1].write_out_indexes)
        for offset in earlier:
            path = f"{self._dir}/{names.offset_name(offset)}{names.SNAPSHOT}"
            if offset not in self._snapshots and self._files.disk.exists(path):
                self._files.disk.remove(path)
        return producers

    def _keep(self, writing_indexes: Callable[[], None]) -> None:
        """On a full disk the log must be readable: the indexes stay in memory until they can be
        written. Raises OSError."""
        try:
            writing_indexes()
        except OSError as error:
            self._state.failed(error)
            if not self._state.is_merely_full:
                raise

    def _adjoin(self, segment: Segment, following: Segment) -> bool:
        """Whether `following` continues `segment`; False if a power loss truncated `segment`.

        Complete segments have their end. All others are contiguous, in a compacted log too,
        unless offsets in an index could not have reached the next batch (`LogSegments.base_for`).
        """
        end = segment.next_offset
        if following.base_offset <= end or end < self._complete_to:
            return following.base_offset >= end
        first = self._first_of(following)
        is_far = first is not None and first.last_offset - end > RELATIVE_OFFSET_MAX
        return is_far or self._options.is_adopted

    def _loading_producers_before(
        self, segments: list[Segment], number: int
    ) -> Steps[ProducerStates]:
        return self._loading_producers(segments, number, segments[number].base_offset)

    def _loading_producers(
        self, segments: list[Segment], count: int, end: Offset
    ) -> Steps[ProducerStates]:
        """At `end`, which is the end of the first `count` segments."""
        start, snapshots = segments[0].base_offset, self._snapshots
        return loading_producers(self._files, self._dir, segments[:count], start, end, snapshots)

    def _behind_damage(
        self, segment: Segment, end: Offset, snapshots: list[Offset]
    ) -> Offset | None:
        """The newest of the snapshots behind all damage of a segment that ends at `end`."""
        if not segment.damages:
            return None
        # A power loss may have brought a removed snapshot back.
        last = end if self._was_written else min(end, self._complete_to)
        found = [each for each in snapshots if segment.damages[-1].end <= each <= last]
        return found[-1] if found else None

    def _dropping(self, segments: list[Segment], number: int) -> Steps[None]:
        if not self._options.lost_power:
            self._state.losing_records()
        while len(segments) > number:
            segment = segments.pop()
            log.warning("segment after a damaged one removed", extra={"path": segment.path("")})
            yield partial(
                remove_files, self._files.disk, mark_deleted(self._files, segment.path(""))
            )
        # Otherwise a second power loss could restore them after newer batches.
        yield partial(self._files.disk.sync_dir, self._dir)

    def _recovering_segment(
        self,
        segment: Segment,
        producers: ProducerStates,
        following: Segment | None,
        found: _Found,
    ) -> Steps[bool]:
        """Index the valid batches, truncate the file after them, update epochs and producer state.

        Returns False if it must be repeated: damaged parts were found, which are left out then, or
        the last applied batch was truncated. The effects on the producer state must be undone.
        """
        size_bytes, epoch_before = segment.size_bytes, self._last_epoch
        epochs_before = self._epochs.entries()
        end_offset = following.base_offset if following is not None else NO_END
        prefix = ValidPrefix(
            segment.base_offset,
            epoch_before,
            self._epoch_starts,
            self._options.leader_epoch_max,
            # Only a power loss brings removed segments back, with offsets that were used again.
            end_offset if end_offset <= self._complete_to else None,
        )
        segment.reset()
        segment.txn_index.rebuild()
        file = self._files.pin(segment.log_path)
        try:
            yield from self._applying_parts(file, size_bytes, segment, prefix, producers)
            self._judge_last_batch(prefix, following)
            is_applied = prefix.size_bytes >= segment.size_bytes
            is_damaged = prefix.size_bytes < size_bytes and (
                yield from self._finding_damages(
                    file, size_bytes, segment, prefix, found, following
                )
            )
            if is_damaged:
                segment.size_bytes = size_bytes
            elif prefix.size_bytes < size_bytes:
                yield from self._truncating(file, size_bytes, segment, prefix)
        finally:
            self._files.unpin(file)
        if is_damaged or not is_applied:
            self._epochs.restore(epochs_before)
            if not is_damaged:
                self._epochs.truncate_end(Offset(prefix.expected))
            self._last_epoch = epoch_before
            return False
        if segment.damages:
            if segment.damages[-1].end_position == prefix.size_bytes:
                segment.end_with_damage(prefix.size_bytes, Offset(prefix.expected))
            self._complete_txn_index(segment, found, Offset(prefix.expected))
        self._gaps += prefix.gaps
        self._last_epoch = prefix.last_epoch
        return True

    def _judge_last_batch(self, prefix: ValidPrefix, following: Segment | None) -> None:
        if following is not None:
            first = self._first_of(following)
            epoch = first.partition_leader_epoch if first is not None else _EPOCH_UNKNOWN
            prefix.end_before(following.base_offset, epoch)
        elif self._gaps + prefix.gaps == 1 and not self._has_gaps:
            prefix.reject_last_gap()  # The only gap of a log that is never compacted.

    def _truncating(
        self, file: File, size_bytes: int, segment: Segment, prefix: ValidPrefix
    ) -> Steps[None]:
        kept = prefix.size_bytes
        log.warning(
            "log truncated to a valid prefix",
            extra={"path": segment.log_path, "kept": kept, "found": size_bytes},
        )
        if not self._options.lost_power and not _is_torn(file, kept, size_bytes):
            self._state.losing_records()
        file.truncate(kept)
        segment.size_bytes = kept
        yield file.sync  # Otherwise a power loss could restore the truncated bytes.

    def _finding_damages(
        self,
        file: File,
        size_bytes: int,
        segment: Segment,
        prefix: ValidPrefix,
        found: _Found,
        following: Segment | None,
    ) -> Steps[bool]:
        """Set the damages of a segment in which the valid prefix ends early. Returns whether there
        is one where it ends: then nothing is truncated, because all up to the end of the damage was
        written completely once. Batches after it that have their place for certain are readable."""
        damages = [each for each in segment.damages if each.end_position <= prefix.size_bytes]
        end = following.base_offset if following is not None else NO_END
        written = NO_END - 1 if self._was_written else self._complete_to
        if not segment.damages and prefix.expected < written:
            check = SegmentCheck(
                SegmentFile(
                    file,
                    segment.base_offset,
                    end,
                    size_bytes,
                    lambda: found.index_entries,
                    LeaderEpochCache(list(self._epoch_starts.items())),
                    self._options.leader_epoch_max,
                )
            )
            expected = Offset(prefix.expected)
            yield from check.checking(prefix.size_bytes, expected, prefix.last_epoch)
            damages = list(takewhile(lambda each: each.end <= written, check.damages))
        is_found = any(each.position == prefix.size_bytes for each in damages)
        if not is_found:  # What follows is truncated, or damaged as a whole.
            damages = [each for each in damages if each.end_position <= prefix.size_bytes]
        if not is_found and end <= self._complete_to:
            first = Offset(min(prefix.expected, end - 1))
            reason = "a batch is damaged, and the rest of the segment could not be read again"
            bounds = prefix.size_bytes, size_bytes
            damages.append(
                Damage(first, end, segment.base_offset, segment.log_path, reason, *bounds)
            )
            is_found = True
        segment.damages = tuple(damages)
        return is_found

    def _complete_txn_index(self, segment: Segment, found: _Found, end: Offset) -> None:
        """Its markers may be in the damaged parts. What the index had is right; without it each
        transaction is taken for the one that the next marker of its producer ends."""
        if found.aborted is None:
            return
        damages = segment.damages
        entries = {each.last_offset: each for each in found.aborted if each.last_offset < end}
        for each in segment.txn_index.entries():
            spans = any(each.first_offset < d.end <= each.last_offset for d in damages)
            # After a power loss the index may lack what was not synced.
            must_be_known = self._was_written or each.last_offset < self._complete_to
            if not (spans and must_be_known):
                entries.setdefault(each.last_offset, each)
        segment.txn_index.rebuild()
        for last_offset in sorted(entries):
            segment.txn_index.append(entries[last_offset])

    def _first_of(self, segment: Segment) -> BatchHeader | None:
        """The first batch of a segment, if it can be read."""
        return first_header(self._files.get(segment.log_path), 0, segment.size_bytes)

    def _applying_parts(
        self,
        file: File,
        size_bytes: int,
        segment: Segment,
        prefix: ValidPrefix,
        producers: ProducerStates,
    ) -> Steps[None]:
        """Apply what is between the known damages of the segment, until a batch is invalid."""
        for damage in segment.damages:
            rows = scan_rows(file, prefix.size_bytes, damage.position)
            yield from self._applying(segment, rows, prefix, producers)
            if prefix.size_bytes < damage.position:
                return
            prefix.skip_to(damage.end_position, damage.end)
            segment.index_next_batch()
        rows = scan_rows(file, prefix.size_bytes, size_bytes)
        yield from self._applying(segment, rows, prefix, producers)

    def _applying(
        self, segment: Segment, rows: Iterator[Row], prefix: ValidPrefix, producers: ProducerStates
    ) -> Steps[None]:
        """Apply batches until one is invalid: regular ones many at a time, others one by one."""
        self._last_seen = None
        try:
            for row in rows:
                batches, number = row.batches, 0
                while number < len(batches):
                    usual_end = prefix.accept_usual(batches, number)
                    if usual_end > number:
                        usual = batches[number:usual_end]
                        segment.note_all(usual)
                        producers.replay_all([header for _, header in usual])
                        self._last_seen = usual[-1][1]
                        number = usual_end
                    elif self._apply_one(segment, row, number, prefix, producers):
                        number += 1
                    else:
                        return
                yield TURN
        except (CorruptMessage, InvalidRecord):
            pass  # Bytes that are no batch end the prefix.
        finally:
            producers.end_offset = Offset(prefix.expected)
            self._observe(self._last_seen)

    def _apply_one(
        self,
        segment: Segment,
        row: Row,
        number: int,
        prefix: ValidPrefix,
        producers: ProducerStates,
    ) -> bool:
        position, header = row.batches[number]
        marker = None
        if header.is_control:
            marker = read_marker(row.bytes_of(position, header), header)
        if not prefix.accept(position, header):
            return False
        segment.note(position, header)
        last = self._last_seen
        if last is None or header.partition_leader_epoch != last.partition_leader_epoch:
            self._observe(last)
            self._observe(header)
        self._last_seen = header
        if header.producer_id >= 0:
            aborted = producers.replay(header, marker)
            if aborted is not None:
                segment.txn_index.append(aborted)
        return True

    def _observe(self, header: BatchHeader | None) -> None:
        """The first and the last batch of an epoch are enough to update the epoch cache."""
        if header is not None:
            epoch = LeaderEpoch(header.partition_leader_epoch)
            self._epochs.observe(epoch, Offset(header.base_offset))


def _is_torn(file: File, position: int, end: int) -> bool:
    """Whether the bytes up to `end` are one batch that was not written completely."""
    if end - position < HEADER_BYTES:
        return True
    try:
        return read_header(file.pread(HEADER_BYTES, position)).size_bytes > end - position
    except CorruptMessage:
        return False


def _last_epoch_of(files: FileCache, segment: Segment) -> int:
    """The leader epoch of the segment's last batch; -1 if unreadable."""
    _, position = segment.offset_index.last_entry()
    file, start = files.get(segment.log_path), max(position, 0)  # The index may be damaged.
    epoch = -1
    try:
        for _, header in scan_headers(file, start, segment.size_bytes):
            epoch = header.partition_leader_epoch
    except CorruptMessage:
        return -1
    return epoch
