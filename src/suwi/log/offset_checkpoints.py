"""The checkpoints of a data directory: an offset of each partition in it, by what it means.

What became known is noted here first; a job writes a whole file, in a thread if need be.
Invariant: no file is ever written over with older offsets.
"""

import threading
from collections.abc import Iterable
from typing import NamedTuple

from suwi.env import Disk
from suwi.log import checkpoints, names
from suwi.log.directory_state import DirectoryState
from suwi.log.partition_log import PartitionLog
from suwi.log.steps import Job, Steps
from suwi.model.ids import Offset, TopicPartition


class Due(NamedTuple):
    """A checkpoint file that must be written before something may go on."""

    checkpoint: str
    version: int


class OffsetCheckpoints:
    def __init__(self, disk: Disk, path: str, state: DirectoryState) -> None:
        """`path` and `state` are the data directory's."""
        self._disk = disk
        self._path = path
        self._state = state
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
        """What each checkpoint file says."""
        self._in_checkpoints: set[TopicPartition] = set()
        """Partitions that some checkpoint file names, whether they are still here or not."""
        self._forgetting: list[Due] = []
        """What must be written until no checkpoint names a deleted partition any more."""
        self._lock = threading.Lock()
        self._version = 0
        self._newest: dict[str, tuple[int, dict[TopicPartition, Offset]]] = {}
        self._written: dict[str, int] = {}

    def read(self) -> None:
        """Take over what the last owner of the directory wrote."""
        for name in (
            names.RECOVERY_POINTS,
            names.LOG_START_OFFSETS,
            names.CLEANER_OFFSETS,
            names.HIGH_WATERMARKS,
        ):
            found = checkpoints.read_offsets(self._disk, f"{self._path}/{name}") or {}
            self._in_checkpoints.update(found)
            self._offsets[name].clear()
            self._offsets[name].update(found)

    # -- what is known -------------------------------------------------------------------------

    def recovery_point_of(self, partition: TopicPartition) -> Offset:
        return self.recovery_points.get(partition, Offset(0))

    def drop(self, partition: TopicPartition) -> None:
        """The partition is gone from here."""
        for offsets in self._offsets.values():
            offsets.pop(partition, None)

    def forgetting(self, partition: TopicPartition) -> Steps[None]:
        """A new partition must not find the offsets of a deleted one of its name after a crash."""
        self.drop(partition)
        stale: set[TopicPartition] = set()
        if partition in self._in_checkpoints:
            stale, self._in_checkpoints = self._in_checkpoints, set()
            self._forgetting = [self._due(name) for name in self._offsets]
        try:
            # Perhaps another partition has begun with it, and for this one too.
            for due in self._forgetting:
                if not self.is_written(due):
                    yield self.job_for(due)
        except OSError as error:
            # The next checkpoint makes up for a full disk.
            self._state.failed(error)
            self._in_checkpoints |= stale

    def lower_watermark(self, partition: TopicPartition, offset: Offset) -> list[Due]:
        """No more than this is committed; what must be written before the next append."""
        if offset >= self.high_watermarks.get(partition, Offset(0)):
            return []
        self.high_watermarks[partition] = offset
        return [self._due(names.HIGH_WATERMARKS)]

    def became_shorter(self, shorter: PartitionLog) -> list[Due]:
        """A log was truncated; what must be written before the next append to it."""
        due: list[Due] = []
        partition = shorter.partition
        if shorter.recovery_point < self.recovery_point_of(partition):
            # Else what is appended now would be taken, after a crash, for what was synced before.
            self.recovery_points[partition] = shorter.recovery_point
            due.append(self._due(names.RECOVERY_POINTS))
        if shorter.start_moved:
            # Nor must it be taken for what was deleted there before.
            self._note_start(shorter)
            due.append(self._due(names.LOG_START_OFFSETS))
        return due

    def _note_start(self, opened: PartitionLog) -> None:
        # Where a segment starts at it, the files say it themselves.
        if opened.start_offset > opened.first_base_offset:
            self.start_offsets[opened.partition] = opened.start_offset
        else:
            self.start_offsets.pop(opened.partition, None)

    def expect_gaps(self, partitions: Iterable[TopicPartition]) -> None:
        """Remember, for good, that compaction may have been at work in these logs.

        Else a lone gap is taken for damage after a crash. Raises OSError.
        """
        for partition in partitions:
            self.cleaned_to.setdefault(partition, Offset(0))
        self._job(names.CLEANER_OFFSETS)()

    # -- writing it down -----------------------------------------------------------------------

    def high_watermarks_job(self, known: Iterable[tuple[TopicPartition, Offset]]) -> Job:
        """Take in new high watermarks; what writes them down, also in a thread."""
        self.high_watermarks.update(known)
        return self._job(names.HIGH_WATERMARKS)

    def recovery_points_job(self, logs: Iterable[PartitionLog]) -> Job:
        """Write down up to where each of the logs is synced."""
        self.recovery_points.update((opened.partition, opened.recovery_point) for opened in logs)
        return self._job(names.RECOVERY_POINTS)

    def start_offsets_job(self, logs: Iterable[PartitionLog]) -> Job:
        """Write down where each of the logs starts."""
        for opened in logs:
            self._note_start(opened)
        return self._job(names.LOG_START_OFFSETS)

    def cleaner_offsets_job(self, logs: Iterable[PartitionLog]) -> Job:
        """Write down how far each compacted log is compacted."""
        self.cleaned_to.update(
            (opened.partition, opened.cleaned_to)
            for opened in logs
            if opened.partition in self.cleaned_to or opened.config.is_compacted
        )
        return self._job(names.CLEANER_OFFSETS)

    def _due(self, name: str) -> Due:
        self._version += 1
        return Due(name, self._version)

    def is_written(self, due: Due) -> bool:
        return self._written.get(due.checkpoint, 0) >= due.version

    def job_for(self, due: Due) -> Job:
        """Writes down what is due, and all that has changed in that checkpoint since."""
        return self._job(due.checkpoint)

    def _job(self, name: str) -> Job:
        """Write the offsets as they are now, or as a later job has them: one write serves all that
        wait for it, and there may be thousands. Raises OSError."""
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
        """Write a checkpoint; whether that worked. The next one makes up for a full disk."""
        try:
            job()
        except OSError as error:
            self._state.failed(error)
            return False
        return True
