"""The segments of one log, and lookup of records in them.

`find` serves readers; `add` and `truncate` work at the end, `remove_oldest` at the start. Files are
deleted in two steps: renamed to `.deleted` at once, removed later. Those of a damaged log are
renamed to `.damaged`, and kept until there is a new copy of it.
Invariant: segments are contiguous, the oldest first; `bases` has the base offset of each.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from suwi.env import Disk, FileRegion
from suwi.env.problems import ProblemKind, because
from suwi.log import names
from suwi.log.damage import Damage
from suwi.log.directory_state import PartitionDirectory
from suwi.log.file_cache import FileCache
from suwi.log.segment import RELATIVE_OFFSET_MAX, Located, Segment
from suwi.log.sliced_work import Steps
from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import CorruptMessage, KafkaStorageError
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import LOG_OVERHEAD_BYTES, BatchHeader

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 16
"""How many segments' files are renamed before the loop is yielded: a millisecond or two."""
_ALL_FILES = (*names.SEGMENT_FILES, names.SNAPSHOT)


class LogSlice(NamedTuple):
    """A readable range of one segment's file that starts with a whole batch.

    Read or pin it before the next await: compaction may replace the file.
    """

    directory: PartitionDirectory
    path: str
    position: int
    size_bytes: int

    def read(self) -> bytes:
        directory = self.directory
        try:
            return directory.files.get(self.path).pread(self.size_bytes, self.position)
        except FileNotFoundError:
            raise  # Retention removed the segment: not a disk failure.
        except OSError as error:
            raise directory.failed(error, directory.generation) from error

    def pin(self) -> tuple[FileRegion, Callable[[], None]]:
        """The range to send, and a function to call when it has been sent or dropped.

        Raises KafkaStorageError.
        """
        owner, generation = self.directory, self.directory.generation
        try:
            file = owner.files.pin(self.path)
        except OSError as error:
            raise owner.failed(error, generation) from error
        region = FileRegion(
            file, self.position, self.size_bytes, lambda: owner.generation == generation
        )
        return region, lambda: owner.files.unpin(file)


class LogSegments:
    __slots__ = (
        "_below_start",
        "_directory",
        "_removed",
        "_replacement_waits_for",
        "all",
        "bases",
        "damages",
        "end_offset",
    )

    def __init__(self, directory: PartitionDirectory, segments: list[Segment]) -> None:
        assert segments
        self._directory = directory
        # Copies have no spare capacity: most of thousands of logs have one segment for a long time.
        self.all = segments.copy()
        self.bases = [segment.base_offset for segment in segments].copy()
        self.end_offset = segments[-1].next_offset
        self._removed: tuple[str, ...] = ()
        self.damages: tuple[Damage, ...] = ()
        """In order, without overlaps."""
        self._below_start: tuple[Damage, ...] = ()
        """Nobody asks for these records, but batches of their segment are behind them."""
        self._replacement_waits_for: str | None = None

    # -- finding -------------------------------------------------------------------------------

    def find(
        self, offset: Offset, bytes_max: int, limit: Offset, whole_batch: bool
    ) -> LogSlice | None:
        """See `PartitionLog.read`. Raises OSError, CorruptMessage."""
        try:
            found = self._locate(offset)
        except CorruptMessage as error:
            self._directory.found_damage(f"at offset {offset}: {error}")
            raise
        if found is None:
            return None
        number, batch = found
        segment = self.all[number]
        end = segment.size_bytes
        is_last = segment is self.all[-1]
        # The segment's records are below the base offset of the next segment.
        if limit < (self.end_offset if is_last else self.bases[number + 1]):
            beyond = segment.locate(limit)
            end = beyond.position if beyond is not None else end
        for damage in segment.damages:
            if batch.position < damage.position < end:
                end = damage.position
        size_bytes = min(bytes_max, end - batch.position)
        if size_bytes < batch.size_bytes:
            if not whole_batch or batch.position + batch.size_bytes > end:
                return None
            size_bytes = batch.size_bytes
        return LogSlice(self._directory, segment.log_path, batch.position, size_bytes)

    def _locate(self, offset: Offset) -> tuple[int, Located] | None:
        """The number of the segment, and the first batch in it that ends at or after `offset`."""
        for number in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.all)):
            batch = self.all[number].locate(offset)
            if batch is not None:
                return number, batch
        return None

    def holding(self, offset: Offset) -> list[Segment]:
        """The segment that contains an offset, and all later ones."""
        return self.all[max(bisect_right(self.bases, offset) - 1, 0) :]

    def aborted_between(
        self, first: Offset, end: Offset, found: LogSlice | None
    ) -> list[AbortedTxn]:
        """In order of their first offsets (hazard T19); the indexes have them in marker order."""
        aborted: list[AbortedTxn] = []
        segments = self.holding(first)
        for segment in segments:
            entries = segment.txn_index.entries()
            if not entries:
                continue
            if found is not None:
                end, found = min(end, self._end_of(found, segments)), None
            aborted += segment.txn_index.between(first, end)
            if entries[-1].last_stable_offset >= end:
                break  # Every transaction that began before `end` had ended by then.
        return sorted(aborted, key=lambda each: each.first_offset)

    def _end_of(self, found: LogSlice, segments: list[Segment]) -> Offset:
        """An offset beyond all records of a slice, the nearest that the offset index has."""
        segment = next(each for each in segments if each.log_path == found.path)
        beyond = segment.offset_beyond(found.position + found.size_bytes)
        if beyond is not None:
            return beyond
        number = bisect_right(self.bases, segment.base_offset)
        return self.bases[number] if number < len(self.bases) else self.end_offset

    def end_to_sync(self, synced_to: Offset, segments_max: int) -> Offset:
        """The offset up to which so many segments are to be synced next."""
        after = self._first_to_sync(synced_to) + segments_max
        return self.bases[after] if after < len(self.bases) else self.end_offset

    def _first_to_sync(self, synced_to: Offset) -> int:
        # If a segment starts at the recovery point, the one before it is included: it may have been
        # finished or truncated since.
        return max(bisect_left(self.bases, synced_to) - 1, 0)

    def paths_to_sync(
        self, synced_to: Offset, end_offset: Offset, *, was_truncated: bool
    ) -> Iterator[str]:
        """The files that changed since everything below `synced_to` was synced. Raises OSError if
        one is not written completely and cannot be now."""
        for segment in self.all[self._first_to_sync(synced_to) :]:
            if segment.base_offset >= end_offset and not was_truncated:
                return
            yield segment.log_path
            if segment is not self.all[-1]:
                # A recovery on a full disk may have left them unwritten.
                segment.write_out_indexes()
                yield segment.path(names.OFFSET_INDEX)
                yield segment.path(names.TIME_INDEX)
            # For synced records it must always be known which of them were aborted.
            if segment.txn_index.entries():
                segment.txn_index.write_out()
                yield segment.txn_index.path

    # -- damage --------------------------------------------------------------------------------

    def check_readable(self, offset: Offset) -> None:
        """Raises KafkaStorageError if the record at an offset is damaged or missing."""
        for damage in self.damages:
            if damage.first <= offset < damage.end:
                raise KafkaStorageError(
                    f"{self._directory.partition}: {damage} are damaged in {damage.path}: "
                    f"{damage.reason}"
                )

    def add_damage(self, damage: Damage) -> bool:
        """Keep these offsets from readers, and report the problem. Returns whether it is new."""
        overlapping = [known for known in self.damages if known.overlaps(damage)]
        for known in overlapping:
            damage = known.merged(damage)
        if damage in self.damages:
            return False
        self._below_start = tuple(each for each in self._below_start if not each.overlaps(damage))
        for known in overlapping:
            self._directory.state.problems.forget(ProblemKind.DAMAGED_BATCH, self._place_of(known))
        others = (known for known in self.damages if known not in overlapping)
        self._set_damages(tuple(sorted((*others, damage))))
        self._report(damage)
        return True

    def hide_damage(self, damage: Damage) -> None:
        """It is below the start of the log."""
        known = (*self.damages, *self._below_start)
        if damage.is_in_file and not any(each.overlaps(damage) for each in known):
            self._below_start += (damage,)
            self._set_damages(self.damages)

    def replacement_waits_for(self, obstacle: str | None) -> bool:
        """Report why the damaged log is not replaced by a copy of another replica yet (None: it is
        being replaced). Returns whether that has changed."""
        is_new = obstacle != self._replacement_waits_for
        if is_new:
            self._replacement_waits_for = obstacle
            for damage in self.damages:
                self._report(damage)
        return is_new

    def _report(self, damage: Damage) -> None:
        reason = f"{damage.path}: {damage.reason}"
        if self._replacement_waits_for is not None:
            reason += f"; its replacement waits for {self._replacement_waits_for}"
        problems = self._directory.state.problems
        problems.report(ProblemKind.DAMAGED_BATCH, self._place_of(damage), reason)

    def forget_damages(
        self, is_gone: Callable[[Damage], bool] = lambda _: True, *, stay_in_file: bool = False
    ) -> None:
        """The records of these ranges are no longer part of the log."""
        gone = [damage for damage in self.damages if is_gone(damage)]
        hidden = self._below_start
        if stay_in_file:
            self._below_start += tuple(damage for damage in gone if damage.is_in_file)
        else:
            self._below_start = tuple(damage for damage in hidden if not is_gone(damage))
        if gone or hidden != self._below_start:
            self._set_damages(tuple(damage for damage in self.damages if damage not in gone))
        problems = self._directory.state.problems
        for damage in gone:
            problems.resolve(ProblemKind.DAMAGED_BATCH, self._place_of(damage))
        if not self.damages:
            problems.resolve(ProblemKind.DAMAGED_BATCH, str(self._directory.partition))

    def _set_damages(self, damages: tuple[Damage, ...]) -> None:
        self.damages = damages
        damaged, partition = self._directory.state.damaged, self._directory.partition
        if damages:
            damaged[partition] = None
        else:
            damaged.pop(partition, None)
        in_files: dict[Offset, list[Damage]] = {}
        for damage in sorted((*self._below_start, *damages)):
            if damage.is_in_file:
                in_files.setdefault(damage.segment, []).append(damage)
        for segment in self.all:
            segment.damages = tuple(in_files.get(segment.base_offset, ()))

    def _place_of(self, damage: Damage) -> str:
        return f"{self._directory.partition} {damage}"

    # -- at the end ----------------------------------------------------------------------------

    def base_for(self, base_offset: Offset, last_offset: Offset) -> Offset:
        """The base offset of a new segment. Segments are contiguous, so that recovery can detect a
        truncated one, unless the batch is too far beyond the end for relative offsets in an
        index."""
        is_near = last_offset - self.end_offset <= RELATIVE_OFFSET_MAX
        return self.end_offset if is_near else base_offset

    def add(self, base_offset: Offset, index_interval_bytes: int, now_ms: int) -> Segment:
        """Create the new active segment. Raises OSError: then the old one stays active."""
        directory = self._directory
        directory.names_version += 1
        try:
            segment = Segment(
                directory.files,
                directory.path,
                base_offset,
                index_interval_bytes=index_interval_bytes,
                created_ms=now_ms,
                create=True,
            )
        except OSError:
            # A leftover empty segment would hide later records of the old one.
            stem = f"{directory.path}/{names.offset_name(base_offset)}"
            remove_files(directory.files.disk, mark_deleted(directory.files, stem))
            raise
        self.all.append(segment)
        self.bases.append(base_offset)
        return segment

    def count_above(self, offset: Offset) -> int:
        return len(self.bases) - bisect_right(self.bases, offset)

    def remove_last(self, count: int = 1, *, keep_files: bool = False) -> None:
        """Remove from the end, the last one first: a crash never leaves a hole. `keep_files`: set
        them aside."""
        for _ in range(count):
            segment = self.all.pop()
            self.bases.pop()
            self._remove_files_of(segment, keep_files)
        if self.damages or self._below_start:
            last = self.bases[-1]
            self.forget_damages(lambda damage: damage.segment > last)

    def _remove_files_of(self, segment: Segment, keep_files: bool) -> None:
        directory = self._directory
        if keep_files:
            directory.state.set_aside[directory.partition] = None
            set_aside(directory.files, segment.path(""))
        else:
            self._removed += tuple(mark_deleted(directory.files, segment.path("")))

    def truncate(self, offset: Offset, index_interval_bytes: int) -> None:
        """Remove everything at and above `offset`; below the first segment, restart there."""
        while len(self.all) > 1 and self.bases[-1] > offset:
            self.remove_last()
        if offset < self.bases[0]:
            self.restart_at(offset, index_interval_bytes)
        last = self.all[-1]
        last.truncate(offset)
        self.forget_damages(lambda damage: damage.end > offset)
        if any(damage.end_position == last.size_bytes for damage in last.damages):
            # Nothing on the disk might lead from the damage to what is appended behind it.
            last.finish()
            self.add(last.next_offset, index_interval_bytes, 0)

    def restart_at(
        self, offset: Offset, index_interval_bytes: int, *, keep_files: bool = False
    ) -> None:
        """Remove everything and continue at `offset`. If that fails, there is still a segment."""
        self.remove_last(len(self.all) - 1, keep_files=keep_files)
        self._remove_files_of(self.all[0], keep_files)
        self.add(offset, index_interval_bytes, 0)
        del self.all[0], self.bases[0]
        self.forget_damages()

    def removing_files(self) -> Steps[None]:
        """Remove the renamed files of truncated segments in a thread: large files take long."""
        paths, self._removed = self._removed, ()
        if not paths:
            return
        directory = self._directory
        try:
            yield partial(remove_files, directory.files.disk, paths)
        except OSError as error:
            log.warning("cannot remove segment files", extra=because(error, dir=directory.path))

    # -- at the start and in the middle --------------------------------------------------------

    def remove_oldest(self, count: int) -> list[str]:
        """Remove the `count` oldest segments. Returns the paths of their renamed files."""
        assert count < len(self.all)
        removed = self.all[:count]
        del self.all[:count], self.bases[:count]
        renamed: list[str] = []
        with self._directory.guard(always_offline=True):
            for segment in removed:
                renamed += mark_deleted(self._directory.files, segment.path(""))
        self.forget_damages(lambda damage: damage.end <= self.bases[0])
        return renamed

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace segments by the one compacted from them. The files are already in place."""
        first = self.all.index(old[0])
        assert self.all[first : first + len(old)] == old
        assert old[-1] is not self.all[-1]
        bases = {segment.base_offset for segment in old}
        self._below_start = tuple(each for each in self._below_start if each.segment not in bases)
        self.all[first : first + len(old)] = [new]
        self.bases[first : first + len(old)] = [new.base_offset]
        self._directory.names_version += 1


def must_roll(
    segment: Segment,
    config: TopicConfig,
    jitter_ms: int,
    header: BatchHeader,
    last_offset: Offset,
    now_ms: int,
) -> bool:
    """Whether a batch must start a new segment."""
    size_bytes = segment.size_bytes
    batch_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    if size_bytes == 0:
        return not segment.has_room(batch_bytes, last_offset, 2**62)
    if size_bytes + batch_bytes > config.segment_bytes:
        return True
    first = segment.first_timestamp
    if first is not None and first >= 0:
        waited_ms = header.max_timestamp - first
    else:
        waited_ms = now_ms - segment.created_ms
    return waited_ms > config.roll_ms - jitter_ms or not segment.has_room(
        batch_bytes, last_offset, config.segment_index_bytes
    )


def mark_deleted(files: FileCache, stem: str, suffixes: tuple[str, ...] = _ALL_FILES) -> list[str]:
    """Rename the files with the common path `stem` to `.deleted`. Returns the new paths."""
    return _add_ending(files, stem, suffixes, names.DELETED)


def set_aside(files: FileCache, stem: str) -> None:
    """Rename the files of a segment to `.damaged`."""
    _add_ending(files, stem, _ALL_FILES, names.DAMAGED)


def _add_ending(files: FileCache, stem: str, suffixes: tuple[str, ...], ending: str) -> list[str]:
    renamed = []
    for suffix in suffixes:
        path = stem + suffix
        files.forget(path)
        try:
            files.disk.rename(path, path + ending)
        except FileNotFoundError:
            continue
        renamed.append(path + ending)
    return renamed


def remove_files(disk: Disk, paths: Iterable[str]) -> None:
    """Remove the files that still exist; run in a thread."""
    for path in paths:
        with suppress(FileNotFoundError):
            disk.remove(path)
