"""The directory of one log: whether it may be used, and what a failure in it means.

Shared by the parts of a `PartitionLog`; `check` comes before any use, `failed` judges an error.
Invariant: neither `generation` nor `names_version` ever falls.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from suwi.log.directory_state import DirectoryState
from suwi.log.file_cache import FileCache
from suwi.log.segment import TornSegment
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset, TopicPartition

log = logging.getLogger(__name__)

_GONE = frozenset({errno.ENOENT, errno.EBADF})
"""How a file answers that was renamed, removed or closed meanwhile."""
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
        """Rises when readable bytes may become others: truncation, deletion of the log. (A segment
        that retention or compaction removes stays as it is for those who have it open.)"""
        self.truncated_to: Offset | None = None
        """The lowest end of the log after a truncation, since a coordinator last looked."""
        self.names_version = 1
        """Rises when a file is made, renamed or replaced."""
        self.is_closed = False
        """Deleted: its files have other names, and its own may be another log's by now."""

    def close(self) -> None:
        """It was deleted: whoever still has it may not use it any more."""
        self.is_closed = True
        self.generation += 1

    def check(self) -> None:
        """Raises KafkaStorageError where it was deleted or its data directory is offline."""
        if self.is_closed:
            raise KafkaStorageError(f"{self.partition} was deleted")
        self.state.check()

    def failed(
        self, error: OSError | TornSegment, generation: int, *, always_offline: bool = False
    ) -> KafkaStorageError:
        """Judge a failure, of a call here or of a job in a thread; the error to answer with.

        `generation` is the log's when the work began. Where it was truncated or deleted since, a
        file that is gone is no fault of the disk. Anything else is, even then: a sync reports a
        lost write once, and not to the one whose write it was.
        `always_offline`: what failed cannot be left half done, not even for lack of space.
        """
        is_current = not self.is_closed and generation == self.generation
        if isinstance(error, OSError) and error.errno in _GONE and not is_current:
            return KafkaStorageError(f"{self.partition} has changed meanwhile")
        if always_offline:
            return self.state.take_offline(error)
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            # This log's directory, not the disk; what is in it is as it was.
            log.warning("no access to a log", extra={"dir": self.path, "reason": str(error)})
            return KafkaStorageError(f"{self.partition}: {error.strerror}")
        return self.state.failed(error)

    @contextmanager
    def guard(self, *, always_offline: bool = False) -> Iterator[None]:
        """Where the log can be used, turn a failure inside into the error to answer with."""
        self.check()
        generation = self.generation
        try:
            yield
        except (OSError, TornSegment) as error:
            raise self.failed(error, generation, always_offline=always_offline) from error
