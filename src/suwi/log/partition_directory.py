"""The directory of one log: whether it is usable, and how failures in it are classified.

Shared by the parts of a `PartitionLog`; call `check` before any use, `failed` for an error.
Invariant: `generation` and `names_version` never decrease.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from suwi.env.problems import ProblemKind
from suwi.log.directory_state import DirectoryState
from suwi.log.file_cache import FileCache
from suwi.log.segment import TornSegment
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset, TopicPartition

_GONE = frozenset({errno.ENOENT, errno.EBADF})
"""Errors of a file that was renamed, removed or closed meanwhile."""
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


class PartitionDirectory:
    __slots__ = (
        "files",
        "generation",
        "is_closed",
        "names_version",
        "partition",
        "path",
        "state",
        "truncated_to",
    )

    def __init__(
        self, files: FileCache, path: str, partition: TopicPartition, state: DirectoryState
    ) -> None:
        self.files = files
        self.path = path
        self.partition = partition
        self.state = state
        self.generation = 0
        """Increases when readable bytes may change: truncation or deletion of the log. (A segment
        removed by retention or compaction stays unchanged for readers that have it open.)"""
        self.truncated_to: Offset | None = None
        """The lowest log end offset after a truncation since a coordinator last reset it."""
        self.names_version = 1
        """Increases when a file is created, renamed or replaced."""
        self.is_closed = False
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
