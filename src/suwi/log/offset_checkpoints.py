"""The offset checkpoints of a data directory: for each kind, one offset per partition.

Changes are noted in memory first; a job writes a whole file, possibly in a thread.
Invariant: a file is never overwritten with older offsets.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from suwi.env import Disk
from suwi.env.problems import ProblemKind
from suwi.log import checkpoints, names
from suwi.log.directory_state import DirectoryState
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import Job, Steps
from suwi.model.ids import Offset, TopicPartition

log = logging.getLogger(__name__)

_EFFECTS_OF_LOSS = {
    names.RECOVERY_POINTS: "after an unclean stop whole logs are checked",
    names.LOG_START_OFFSETS: "records that were deleted with DeleteRecords may be readable again",
    names.CLEANER_OFFSETS: "compacted logs are compacted from their start",
    names.HIGH_WATERMARKS: "followers learn their high watermarks again",
}
_WRITTEN_BY_STOP = (names.RECOVERY_POINTS, names.LOG_START_OFFSETS)


class Due(NamedTuple):
    """A checkpoint file that must be written before the log may be used further."""

    checkpoint: str
    version: int


class OffsetCheckpoints:
    def __init__(
        self,
        disk: Disk,
        path: str,
        state: DirectoryState,
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> None:
        """`path`, `state` and the open `logs` are those of the data directory."""
        self._disk = disk
        self._path = path
        self._state = state
        self._logs = logs
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        self.recovery_points: dict[TopicPartition, Offset] = {}
        self.start_offsets: dict[TopicPartition, Offset] = {}
        self.cleaned_to: dict[TopicPartition, Offset] = {}
        self._offsets = {
            names.HIGH_WATERMARKS: self.high_watermarks,
            names.RECOVERY_POINTS: self.recovery_points,
            names.LOG_START_OFFSETS: self.start_offsets,
            names.CLEANER_OFFSETS: self.cleaned_to,
        }
        """The contents of each checkpoint file."""
        self._in_checkpoints: set[TopicPartition] = set()
        """Partitions that are in some checkpoint file, even if they no longer exist."""
        self._forgetting: list[Due] = []
        """What must be written to remove deleted partitions from all checkpoint files."""
        self._lock = threading.Lock()
        self._version = 0
        self._newest: dict[str, tuple[int, dict[TopicPartition, Offset]]] = {}
        self._written: dict[str, int] = {}

    def read(self, *, must_exist: bool, lost_power: bool) -> None:
        """Read the checkpoint files. `must_exist`: after a clean stop those that a stop writes are
        there, if the directory has partitions. `lost_power`: a file that `write_missing` wrote may
        be empty."""
        for name, effect in _EFFECTS_OF_LOSS.items():
            path = f"{self._path}/{name}"
            found = checkpoints.read_offsets(self._disk, path)
            if found is None:
                is_missing = must_exist and name in _WRITTEN_BY_STOP
                is_damaged = self._disk.exists(path) and (
                    not lost_power or self._disk.read_bytes(path) != b""
                )
                if is_missing or is_damaged:
                    self._lost(name, path, effect)
                found = {}
            self._in_checkpoints.update(found)
            self._offsets[name].clear()
            self._offsets[name].update(found)

    def _lost(self, name: str, path: str, effect: str) -> None:
        log.warning("checkpoint lost or damaged", extra={"path": path, "effect": effect})
        if name == names.LOG_START_OFFSETS:
            self._state.problems.report(ProblemKind.START_OFFSETS_LOST, path, effect)

    def write_missing(self) -> None:
        """Write the files that do not exist, without entries: whoever looks finds all of them, and
        one that is missing later was lost. Not synced, and no error if the disk is full, since they
        say nothing."""
        for name in self._offsets:
            path = f"{self._path}/{name}"
            with contextlib.suppress(OSError):
                if not self._disk.exists(path):
                    checkpoints.write_no_offsets(self._disk, path)

    # -- offsets -------------------------------------------------------------------------------

    def recovery_point_of(self, partition: TopicPartition) -> Offset:
        return self.recovery_points.get(partition, Offset(0))

    def drop(self, partition: TopicPartition) -> None:
        """The partition was removed from this directory."""
        for offsets in self._offsets.values():
            offsets.pop(partition, None)

    def forgetting(self, partition: TopicPartition) -> Steps[None]:
        """After a crash a new partition must not get the offsets of a deleted one with its name."""
        self.drop(partition)
        stale: set[TopicPartition] = set()
        if partition in self._in_checkpoints:
            stale, self._in_checkpoints = self._in_checkpoints, set()
            self._forgetting = [self._due(name) for name in self._offsets]
        try:
            # The writes may already be in progress for another partition.
            for due in self._forgetting:
                if not self.is_written(due):
                    yield self.job_for(due.checkpoint)
        except OSError as error:
            # After a full disk the next checkpoint write removes them.
            self._state.failed(error)
            self._in_checkpoints |= stale

    def lower_watermark(self, partition: TopicPartition, offset: Offset) -> list[Due]:
        """Lower the high watermark. Returns what must be written before the next append."""
        if offset >= self.high_watermarks.get(partition, Offset(0)):
            return []
        self.high_watermarks[partition] = offset
        return [self._due(names.HIGH_WATERMARKS)]

    def log_truncated(self, truncated: PartitionLog) -> list[Due]:
        """A log was truncated. Returns what must be written before the next append to it."""
        due: list[Due] = []
        partition = truncated.partition
        if truncated.recovery_point < self.recovery_point_of(partition):
            # Otherwise, after a crash, new records would be considered synced.
            self.recovery_points[partition] = truncated.recovery_point
            due.append(self._due(names.RECOVERY_POINTS))
        if truncated.start_moved:
            # Otherwise, after a crash, new records would be considered deleted.
            self._note_start(truncated)
            due.append(self._due(names.LOG_START_OFFSETS))
        return due

    def _note_start(self, opened: PartitionLog) -> None:
        # If a segment starts at the start offset, the file name has it.
        if opened.start_offset > opened.first_base_offset:
            self.start_offsets[opened.partition] = opened.start_offset
        else:
            self.start_offsets.pop(opened.partition, None)

    def expect_gaps(self, partitions: Iterable[TopicPartition]) -> None:
        """Record permanently that these logs may have been compacted.

        Otherwise a single gap counts as damage after a crash. Raises OSError.
        """
        for partition in partitions:
            self.cleaned_to.setdefault(partition, Offset(0))
        self.job_for(names.CLEANER_OFFSETS)()

    # -- writing -------------------------------------------------------------------------------

    def high_watermarks_job(self, known: Iterable[tuple[TopicPartition, Offset]]) -> Job:
        """Update the high watermarks. Returns a job that writes them, also in a thread."""
        self.high_watermarks.update(known)
        return self.job_for(names.HIGH_WATERMARKS)

    @property
    def recovery_points_moved(self) -> bool:
        """Whether a log was synced since its recovery point was written, by whomever."""
        written = self.recovery_points
        return any(written.get(tp, 0) != each.recovery_point for tp, each in self._logs.items())

    def recovery_points_job(self) -> Job:
        """Write the recovery point of each log."""
        self.recovery_points.update({tp: each.recovery_point for tp, each in self._logs.items()})
        return self.job_for(names.RECOVERY_POINTS)

    def start_offsets_job(self) -> Job:
        """Write the start offset of each log."""
        for opened in self._logs.values():
            self._note_start(opened)
        return self.job_for(names.LOG_START_OFFSETS)

    def cleaner_offsets_job(self) -> Job:
        """Write the cleaner offset of each compacted log."""
        for tp, opened in self._logs.items():
            if tp in self.cleaned_to or opened.config.is_compacted:
                self.cleaned_to[tp] = opened.cleaned_to
        return self.job_for(names.CLEANER_OFFSETS)

    def _due(self, name: str) -> Due:
        self._version += 1
        return Due(name, self._version)

    def is_written(self, due: Due) -> bool:
        return self._written.get(due.checkpoint, 0) >= due.version

    def job_for(self, name: str) -> Job:
        """Write the offsets as they are now, or those of a later job: one write serves all jobs
        that wait for it, which may be thousands. Raises OSError."""
        offsets = dict(self._offsets[name])
        self._in_checkpoints.update(offsets)
        self._version += 1
        version = self._version
        self._newest[name] = (version, offsets)

        def write() -> None:
            with self._lock:
                if version > self._written.get(name, 0):
                    newest, frozen = self._newest[name]
                    checkpoints.write_offsets(self._disk, f"{self._path}/{name}", frozen)
                    self._written[name] = newest

        return write

    def write(self, job: Job) -> bool:
        """Write a checkpoint. Returns whether that succeeded; the next write makes up for it."""
        try:
            job()
        except OSError as error:
            self._state.failed(error)
            return False
        return True
