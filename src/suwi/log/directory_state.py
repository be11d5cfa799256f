"""Whether a data directory, and the directory of one log in it, is usable, and how failures are
classified.

A failed sync, or a failed write that cannot be undone, takes the data directory offline. It is
never retried: the kernel may have dropped the pages that it could not write.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from suwi.env.problems import ProblemKind, Problems
from suwi.log.file_cache import FileCache
from suwi.log.segment import TornSegment
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset, TopicPartition

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""A file cannot be opened now; nothing is wrong with the disk."""
_GONE = frozenset({errno.ENOENT, errno.EBADF})
"""Errors of a file that was renamed, removed or closed meanwhile."""
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


@dataclass(eq=False, repr=False)
class DirectoryState:
    """The state of a data directory, shared by all logs in it."""

    path: str
    problems: Problems
    _on_offline: Callable[[Exception], None] = lambda _: None
    _on_loss: Callable[[], None] = lambda: None
    offline_because: Exception | None = None
    is_full: bool = False
    full_errors: int = 0
    """How many writes failed because the disk was full."""
    damaged: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions whose logs have damaged or missing records."""
    suspects: dict[TopicPartition, Offset] = field(default_factory=dict)
    """Offsets that were read again and again: readers may have found the batch damaged."""
    set_aside: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions that have files of a damaged log (`names.DAMAGED`)."""
    lost_records: bool = False
    """Whether a recovery removed damaged batches, and what followed them. Until a controller knows
    it."""

    @property
    def is_merely_full(self) -> bool:
        """Whether it can be read, but not written."""
        return self.is_full and self.offline_because is None

    def check(self) -> None:
        if self.offline_because is not None:
            raise KafkaStorageError(f"{self.path} is offline: {self.offline_because}")

    def failed(self, error: OSError | TornSegment) -> KafkaStorageError:
        """Classify a failure. Returns the error to respond with. Only a full disk can recover."""
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            self.full_errors += 1
            self.found_full()
            return KafkaStorageError(f"{self.path}: no space left on the device")
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            # The process lacks file descriptors; the data on the disk is intact.
            self.problems.report(ProblemKind.NO_DESCRIPTORS, "broker", str(error.strerror))
            return KafkaStorageError(f"{self.path}: {error.strerror}")
        return self.take_offline(error)

    def losing_records(self) -> None:
        """A recovery is about to remove damaged batches. The log shows no trace of them then, so
        this is noted first: the process may be killed before it has told a controller."""
        if not self.lost_records:
            self.lost_records = True
            self._on_loss()

    def found_full(self) -> None:
        self.is_full = True
        self.problems.report(ProblemKind.DISK_FULL, self.path, "no space left on the device")

    def has_space(self) -> None:
        """A write of a batch or of the probe succeeded after a full disk."""
        self.is_full = False
        self.problems.resolve(ProblemKind.DISK_FULL, self.path)

    def take_offline(self, error: Exception) -> KafkaStorageError:
        """The state on the disk is unknown: stop using the directory."""
        if self.offline_because is None:
            self.offline_because = error
            self.problems.report(ProblemKind.DIRECTORY_OFFLINE, self.path, str(error))
            self._on_offline(error)
        return KafkaStorageError(f"{self.path} is offline: {error}")


@dataclass(slots=True, eq=False)
class PartitionDirectory:
    """The directory of one log, shared by the parts of a `PartitionLog`. Call `check` before any
    use, `failed` for an error.
    Invariant: `generation` and `names_version` never decrease.
    """

    files: FileCache
    path: str
    partition: TopicPartition
    state: DirectoryState
    generation: int = 0
    """Increases when readable bytes may change: truncation or deletion of the log. (A segment
    removed by retention or compaction stays unchanged for readers that have it open.)"""
    truncated_to: Offset | None = None
    """The lowest log end offset after a truncation since a coordinator last reset it."""
    names_version: int = 1
    """Increases when a file is created, renamed or replaced."""
    is_closed: bool = False
    """The log was deleted: its files were renamed, and their old names may be another log's."""

    def close(self) -> None:
        """The log was deleted and must no longer be used."""
        self.is_closed = True
        self.generation += 1

    def check(self) -> None:
        """Raises KafkaStorageError if the log was deleted or its data directory is offline."""
        if self.is_closed:
            raise KafkaStorageError(f"{self.partition} was deleted")
        self.state.check()

    def failed(
        self, error: OSError | TornSegment, generation: int, *, always_offline: bool = False
    ) -> KafkaStorageError:
        """Classify a failure of a call or of a job in a thread. Returns the error to respond with.

        `generation` is the log's when the work started. If the log was truncated or deleted since,
        a missing file is not a disk failure. Any other error is one even then: a sync reports a
        lost write once, and not necessarily to the log whose write it was.
        `always_offline`: the operation cannot be left half done, not even because of a full disk.
        """
        is_current = not self.is_closed and generation == self.generation
        if isinstance(error, OSError) and error.errno in _GONE and not is_current:
            return KafkaStorageError(f"{self.partition} was truncated or deleted meanwhile")
        if always_offline:
            return self.state.take_offline(error)
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            # A permission problem of this log's directory; the data on the disk is intact.
            self.state.problems.report(
                ProblemKind.LOG_UNREADABLE, str(self.partition), f"{self.path}: {error.strerror}"
            )
            return KafkaStorageError(f"{self.partition}: {error.strerror}")
        return self.state.failed(error)

    def found_damage(self, reason: str) -> None:
        """A batch of this log cannot be read, or its checksum is wrong."""
        self.state.problems.report(ProblemKind.DAMAGED_BATCH, str(self.partition), reason)

    def is_accessible(self) -> bool:
        """Whether all files can be opened; run in a thread."""
        disk, path = self.files.disk, self.path
        try:
            for name in disk.list_dir(path):
                disk.open(f"{path}/{name}").close()
        except OSError:
            return False
        return True

    def access_is_back(self) -> None:
        """After a permission problem all files can be opened again."""
        self.state.problems.resolve(ProblemKind.LOG_UNREADABLE, str(self.partition))

    @contextmanager
    def guard(self, *, always_offline: bool = False) -> Iterator[None]:
        """Check that the log is usable; convert a failure inside to the error to respond with."""
        self.check()
        generation = self.generation
        try:
            yield
        except (OSError, TornSegment) as error:
            raise self.failed(error, generation, always_offline=always_offline) from error
