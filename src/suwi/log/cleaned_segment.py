"""The segment that compaction makes out of several: written as `.cleaned`, then put in their place.

A `CleanedSegment` is filled in a thread and touches nothing of the log; `swap_in` runs on the loop.
Invariant: at every moment the directory holds all of the old segments or all of the new one, and
`complete_swaps` can tell which after a crash.
"""

import logging
from collections.abc import Iterator
from posixpath import basename

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_filter import BatchFilter
from suwi.log.batch_scan import scan_headers
from suwi.log.deleted_files import mark_deleted
from suwi.log.file_cache import FileCache, write_all
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import POSITION_MAX, Segment
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, batches

log = logging.getLogger(__name__)

ScannedBatches = Iterator[tuple[int, BatchHeader, memoryview]]

_OPEN_FILES = 3
# A job competes with the loop for the interpreter: a few milliseconds must do.
_JOB_BYTES = 128 * 1024
_JOB_RECORDS = 500


def one_job_of(found: ScannedBatches) -> Iterator[tuple[BatchHeader, memoryview]]:
    """As many of the next batches as one job should look at; none where there are no more."""
    bytes_left, records_left = _JOB_BYTES, _JOB_RECORDS
    while bytes_left > 0 and records_left > 0:
        following = next(found, None)
        if following is None:
            return
        _, header, batch = following
        bytes_left -= len(batch)
        records_left -= header.record_count
        yield header, batch


class CleanedSegment:
    """What stays of a row of segments, on its way to disk. Used by one thread at a time."""

    def __init__(
        self, disk: Disk, directory: str, base_offset: Offset, index_interval_bytes: int
    ) -> None:
        self._disk = disk
        self._dir = directory
        self._stem = f"{directory}/{names.offset_name(base_offset)}"
        self._files = FileCache(disk, _OPEN_FILES)
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._made: Segment | None = None
        self.bytes_read = 0
        self.is_changed = False
        """Whether anything of the old segments is gone or different."""

    def create(self) -> None:
        self._made = Segment(
            self._files,
            self._dir,
            self._base_offset,
            index_interval_bytes=self._index_interval_bytes,
            created_ms=0,
            create=True,
            extension=names.CLEANED,
        )

    @property
    def _segment(self) -> Segment:
        assert self._made is not None
        return self._made

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes

    def take_in(self, found: ScannedBatches, rules: BatchFilter, *, end: Offset) -> bool:
        """Filter as many batches as a job should; whether there may be more.

        The batch that ends at `end` stays, if only as a header: so segments go on adjoining, and
        whoever completes an interrupted swap knows how far this one reaches.
        """
        out = bytearray()
        is_more = False
        for header, batch in one_job_of(found):
            kept = rules.filter(batch, header, keep_empty=header.next_offset == end)
            if kept is not batch:
                self.is_changed = True
            if kept is not None:
                out += kept
            self.bytes_read += len(batch)
            is_more = True
        self._write(out)
        return is_more

    def _write(self, out: bytearray) -> None:
        if not out:
            return
        start = self._segment.size_bytes
        if start + len(out) > POSITION_MAX:
            raise CorruptMessage(f"{self._segment.log_path} would outgrow a segment")
        write_all(self._files.get(self._segment.log_path), out, start)
        for position, header in batches(out):
            self._segment.note(start + position, header)

    def finish(self, rules: BatchFilter, modified_ms: int) -> None:
        """Complete the files and make them last. They are as old as what they replace."""
        segment = self._segment
        segment.txn_index.entries().extend(rules.transactions.kept)
        rules.transactions.kept.clear()
        segment.finish()
        for path in self._paths():
            self._files.get(path).sync()
            self._disk.set_modified_ms(path, modified_ms)
        self.close()
        self._disk.sync_dir(self._dir)

    def discard(self) -> None:
        """Give it up: nothing remains."""
        self.close()
        for path in self._paths():
            self._disk.remove(path)

    def close(self) -> None:
        """Let go of the files. What is left of them goes before the next cleaning or start."""
        self._files.forget_dir(self._dir)

    def _paths(self) -> list[str]:
        paths = [self._stem + suffix + names.CLEANED for suffix in names.SEGMENT_FILES]
        return [path for path in paths if self._disk.exists(path)]

    def swap_in(self, owner: PartitionLog, old: list[Segment]) -> list[str]:
        """Put it in the place of `old`; the paths of their files, to remove at leisure.

        Raises KafkaStorageError: then the directory is offline, and the next start completes it.
        """
        first, disk, stem = old[0], self._disk, self._stem
        suffixes = [s for s in names.SEGMENT_FILES if disk.exists(stem + s + names.CLEANED)]
        gone: list[str] = []
        with owner.directory.guard(always_offline=True):
            for suffix in suffixes:
                disk.rename(stem + suffix + names.CLEANED, stem + suffix + names.SWAP)
            # The producers at the start of the first are those at the start of the new one.
            gone += mark_deleted(owner.files, stem, names.SEGMENT_FILES)
            for segment in old[1:]:
                gone += mark_deleted(owner.files, segment.path(""))
            for suffix in suffixes:
                disk.rename(stem + suffix + names.SWAP, stem + suffix)
            new = Segment(
                owner.files,
                owner.dir,
                first.base_offset,
                index_interval_bytes=owner.config.index_interval_bytes,
                created_ms=first.created_ms,
            )
        owner.replace(old, new)
        return gone


# -- after a crash -----------------------------------------------------------------------------


def remove_cleaned(disk: Disk, directory: str) -> None:
    """Remove what an unfinished cleaning left. While no log of this directory is in use."""
    for name in disk.list_dir(directory):
        if name.endswith(names.CLEANED):
            disk.remove(f"{directory}/{name}")


def complete_swaps(disk: Disk, directory: str) -> None:
    """Finish what a crash interrupted: either the old segments are left or the new one.

    A `.cleaned` file beside it means that the old segments are all still there. Every step may be
    the last one before the next crash, so the order counts.
    """
    found = disk.list_dir(directory)
    swaps = [name for name in found if name.endswith(names.SWAP)]
    cleaned = [_offset_of(name, names.CLEANED) for name in found if name.endswith(names.CLEANED)]
    first_cleaned = min((offset for offset in cleaned if offset is not None), default=None)
    for name in swaps:
        offset = _offset_of(name, names.SWAP)
        if offset is None or (first_cleaned is not None and offset >= first_cleaned):
            disk.remove(f"{directory}/{name}")
        elif name.endswith(names.LOG + names.SWAP):
            _remove_replaced(disk, directory, offset, _end_of(disk, f"{directory}/{name}", offset))
    remove_cleaned(disk, directory)
    for suffix in names.SEGMENT_FILES:
        for name in disk.list_dir(directory):
            if name.endswith(suffix + names.SWAP):
                log.info("interrupted swap completed", extra={"dir": directory, "file": name})
                path = f"{directory}/{name}"
                disk.rename(path, path.removesuffix(names.SWAP))


def _remove_replaced(disk: Disk, directory: str, base: Offset, end: Offset) -> None:
    """Remove the files of the segments that the `.swap` from `base` to `end` was made from."""
    for name in disk.list_dir(directory):
        for suffix in (*names.SEGMENT_FILES, names.SNAPSHOT):
            offset = names.parse_offset_name(name, suffix)
            is_within = offset is not None and base <= offset < end
            # The producers at the start are what they were.
            if is_within and not (suffix == names.SNAPSHOT and offset == base):
                disk.remove(f"{directory}/{name}")


def _end_of(disk: Disk, path: str, base: Offset) -> Offset:
    """Where a `.swap` ends. It was synced before it got this name, so it is whole."""
    end = base + 1
    file = disk.open(path)
    try:
        for _, header in scan_headers(file, 0, file.size()):
            end = max(end, header.next_offset)
    except CorruptMessage as error:
        log.warning("swap file damaged", extra={"path": basename(path), "reason": str(error)})
    finally:
        file.close()
    return Offset(end)


def _offset_of(name: str, extension: str) -> Offset | None:
    """The offset in `{offset}.log.swap` and its like."""
    stem = name.removesuffix(extension)
    offsets = (names.parse_offset_name(stem, suffix) for suffix in names.SEGMENT_FILES)
    return next((offset for offset in offsets if offset is not None), None)
