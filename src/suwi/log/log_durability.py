"""What part of one log survives a power loss, and what to sync to extend it.

`sync_job` returns what to sync; `synced`, `sync_failed` or `sync_abandoned` must be called with the
job afterwards.
Invariant: everything below the recovery point survives, once the last truncation is synced.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from posixpath import dirname
from typing import NamedTuple

from suwi.env import Disk, File
from suwi.log import names
from suwi.log.directory_state import NO_DESCRIPTORS, PartitionDirectory
from suwi.log.leader_epoch_cache import EpochCheckpoint
from suwi.log.log_segments import LogSegments
from suwi.model.ids import Offset

_SEGMENTS_PER_JOB = 50
_FILES_PER_SEGMENT = 4


class SyncJob(NamedTuple):
    """What to sync in a thread so that a log survives a power loss."""

    end_offset: Offset
    generation: int
    disk: Disk
    files: tuple[File, ...]
    small_files: tuple[str, ...]
    """Files beside the segments, if they may have changed since the last sync."""
    dirs: tuple[str, ...]
    """Directories whose entries may have changed, the inner one first."""
    names_version: int
    reaches_end: bool
    """Whether nothing of the log is left to be synced after it."""

    def run(self) -> None:
        """Raises OSError: then the state on the disk is unknown."""
        for file in self.files:
            file.sync()
        # A missing file belongs to a log that was deleted meanwhile.
        for path in self.small_files:
            with suppress(FileNotFoundError), closing(self.disk.open(path)) as file:
                file.sync()
        for directory in self.dirs:
            with suppress(FileNotFoundError):
                self.disk.sync_dir(directory)


@dataclass(slots=True, eq=False)
class LogDurability:
    _directory: PartitionDirectory
    _segments: LogSegments
    _epochs: EpochCheckpoint
    recovery_point: Offset
    truncation_is_safe: bool
    """False while a power loss could bring back truncated records in place of newer ones."""
    _names_synced: int = 0
    """The version of the directory's file names that survives a power loss."""

    @property
    def is_unsynced(self) -> bool:
        return self.recovery_point < self._segments.end_offset or not self.truncation_is_safe

    @contextmanager
    def truncation(self) -> Iterator[None]:
        """Wraps a removal of records from the end, which is not safe until the next sync."""
        directory, segments = self._directory, self._segments
        directory.generation += 1
        directory.names_version += 1
        self.truncation_is_safe = False
        with directory.guard(always_offline=True):
            yield
            end_offset = segments.end_offset = segments.all[-1].next_offset
            if directory.truncated_to is None or end_offset < directory.truncated_to:
                directory.truncated_to = end_offset
            self.recovery_point = min(self.recovery_point, segments.end_offset)

    def sync_job(self, up_to: Offset | None = None) -> SyncJob | None:
        """What to sync so that everything below `up_to` (default: the end) survives a power loss;
        of very many segments the first ones, so that opening their files takes no long time. After
        a truncation everything up to the end is to be synced.

        Raises KafkaStorageError if the files cannot be opened.
        """
        segments = self._segments
        end_offset = segments.end_offset
        if self.truncation_is_safe:
            end_offset = end_offset if up_to is None else min(up_to, end_offset)
            if end_offset <= self.recovery_point:
                return None
        # At least two: the first one may be there only because it was finished since.
        allowed = max(self._directory.files.files_per_sync_max // _FILES_PER_SEGMENT, 2)
        segments_max = min(allowed, _SEGMENTS_PER_JOB)
        end_offset = min(end_offset, segments.end_to_sync(self.recovery_point, segments_max))
        reaches_end = end_offset == segments.end_offset
        directory = self._directory
        directory.check()
        self._epochs.write()
        path = directory.path
        names_changed = directory.names_version > self._names_synced
        paths = segments.paths_to_sync(
            self.recovery_point,
            end_offset,
            was_truncated=reaches_end and not self.truncation_is_safe,
        )
        return SyncJob(
            end_offset,
            directory.generation,
            directory.files.disk,
            self._pin_all(paths),
            tuple(f"{path}/{name}" for name in names.SMALL_FILES) if names_changed else (),
            (path, dirname(path)) if names_changed else (),
            directory.names_version,
            reaches_end,
        )

    def _pin_all(self, paths: Iterable[str]) -> tuple[File, ...]:
        directory = self._directory
        pinned: list[File] = []
        try:
            pinned.extend(directory.files.pin(path) for path in paths)
        except OSError as error:
            for file in pinned:
                directory.files.unpin(file)
            raise directory.failed(error, directory.generation) from error
        return tuple(pinned)

    def synced(self, job: SyncJob) -> None:
        self.sync_abandoned(job)
        if job.generation != self._directory.generation:
            return  # The synced records were truncated; the current ones may not be synced.
        self.recovery_point = max(self.recovery_point, job.end_offset)
        if job.dirs:
            self._names_synced = max(self._names_synced, job.names_version)
        if job.reaches_end and self._names_synced >= job.names_version:
            self.truncation_is_safe = True

    def sync_failed(self, job: SyncJob, error: OSError) -> None:
        """For nearly any reason, even a full disk: unsynced data may be lost."""
        self.sync_abandoned(job)
        if error.errno in NO_DESCRIPTORS:
            # A file could not be opened; that says nothing about what was written.
            self._directory.state.failed(error)
            return
        self._directory.failed(error, job.generation, always_offline=True)

    def sync_abandoned(self, job: SyncJob) -> None:
        """The result is unknown: release the files, change nothing else."""
        for file in job.files:
            self._directory.files.unpin(file)
