"""The segment that compaction builds from several: written as `.cleaned`, then swapped in.

A `CleanedSegment` is filled in a thread and does not touch the log; `swap_in` runs on the loop.
Invariant: at any time the directory has all of the old segments or all of the new one, and after a
crash `complete_swaps` can tell which.
"""

import logging
from collections.abc import Iterator
from posixpath import basename

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_filter import BatchFilter
from suwi.log.batch_scan import scan_headers
from suwi.log.file_cache import FileCache, write_all
from suwi.log.log_segments import mark_deleted
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import POSITION_MAX, Segment
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, batches

log = logging.getLogger(__name__)

ScannedBatches = Iterator[tuple[int, BatchHeader, memoryview]]

_OPEN_FILES = 3
# A job competes with the event loop for the interpreter lock: it should take a few milliseconds.
_JOB_BYTES = 128 * 1024
_JOB_RECORDS = 500


def batches_for_one_job(found: ScannedBatches) -> Iterator[tuple[BatchHeader, memoryview]]:
    """As many of the next batches as one job should process; none at the end."""
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
    """The kept batches of a group of segments, being written. Used by one thread at a time."""

    def __init__(
        self, disk: Disk, directory: str, base_offset: Offset, index_interval_bytes: int
    ) -> None:
        self._disk = disk
        self._dir = directory
        self._stem = f"{directory}/{names.offset_name(base_offset)}"
        self._files = FileCache(disk, _OPEN_FILES)
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._created: Segment | None = None
        self.bytes_read = 0
        self.is_changed = False
        """Whether anything of the old segments was removed or changed."""

    def create(self) -> None:
        self._created = Segment(
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
        assert self._created is not None
        return self._created

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes

    def add_batches(self, found: ScannedBatches, rules: BatchFilter, *, end: Offset) -> bool:
        """Filter as many batches as one job should. Returns whether there may be more.

        The batch that ends at `end` is kept, if only as a header: so segments stay contiguous, and
        `complete_swaps` can find the end of this one.
        """
        out = bytearray()
        is_more = False
        for header, batch in batches_for_one_job(found):
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
            raise CorruptMessage(f"{self._segment.log_path} would exceed the maximum segment size")
        write_all(self._files.get(self._segment.log_path), out, start)
        for position, header in batches(out):
            self._segment.note(start + position, header)

    def finish(self, rules: BatchFilter, modified_ms: int) -> None:
        """Complete and sync the files. They get the modification time of the old segments."""
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
        """Remove all files."""
        self.close()
        for path in self._paths():
            self._disk.remove(path)

    def close(self) -> None:
        """Close the files. The next cleaning or the next start removes them."""
        self._files.forget_dir(self._dir)

    def _paths(self) -> list[str]:
        paths = [self._stem + suffix + names.CLEANED for suffix in names.SEGMENT_FILES]
        return [path for path in paths if self._disk.exists(path)]

    def swap_in(self, owner: PartitionLog, old: list[Segment]) -> list[str]:
        """Replace the segments `old`. Returns the paths of their files, to be removed later.

        Raises KafkaStorageError: then the directory is offline, and the next start completes the
        swap.
        """
        first, disk, stem = old[0], self._disk, self._stem
        suffixes = [s for s in names.SEGMENT_FILES if disk.exists(stem + s + names.CLEANED)]
        deleted: list[str] = []
        with owner.directory.guard(always_offline=True):
            for suffix in suffixes:
                disk.rename(stem + suffix + names.CLEANED, stem + suffix + names.SWAP)
            # The snapshot at the start of the first old segment is also valid for the new one.
            deleted += mark_deleted(owner.files, stem, names.SEGMENT_FILES)
            for segment in old[1:]:
                deleted += mark_deleted(owner.files, segment.path(""))
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
        return deleted


# -- after a crash -----------------------------------------------------------------------------


def remove_cleaned(disk: Disk, directory: str) -> None:
    """Remove the files of an unfinished cleaning. The directory's log must not be in use."""
    for name in disk.list_dir(directory):
        if name.endswith(names.CLEANED):
            disk.remove(f"{directory}/{name}")


def complete_swaps(disk: Disk, directory: str) -> None:
    """Complete an interrupted swap: keep either the old segments or the new one.

    If there is also a `.cleaned` file, the old segments are all still there. A crash may follow any
    step, so the order matters.
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
    """Remove the files of the segments that were replaced by the `.swap` from `base` to `end`."""
    for name in disk.list_dir(directory):
        for suffix in (*names.SEGMENT_FILES, names.SNAPSHOT):
            offset = names.parse_offset_name(name, suffix)
            is_within = offset is not None and base <= offset < end
            # The producer state at the start has not changed.
            if is_within and not (suffix == names.SNAPSHOT and offset == base):
                disk.remove(f"{directory}/{name}")


def _end_of(disk: Disk, path: str, base: Offset) -> Offset:
    """The end offset of a `.swap`. It was synced before it got this name, so it is complete."""
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
    """The offset in a name such as `{offset}.log.swap`."""
    stem = name.removesuffix(extension)
    offsets = (names.parse_offset_name(stem, suffix) for suffix in names.SEGMENT_FILES)
    return next((offset for offset in offsets if offset is not None), None)
