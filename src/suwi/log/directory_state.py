"""Whether a data directory is online, shared by all logs in it.

A failed sync, or a failed write that cannot be undone, takes the directory offline. It is never
retried: the kernel may have dropped the pages that it could not write.
"""

import errno
from collections.abc import Callable

from suwi.env.problems import ProblemKind, Problems
from suwi.log.segment import TornSegment
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset, TopicPartition

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""A file cannot be opened now; nothing is wrong with the disk."""


class DirectoryState:
    def __init__(
        self,
        path: str,
        problems: Problems,
        on_offline: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.problems = problems
        self.offline_because: Exception | None = None
        self.is_full = False
        self.full_errors = 0
        """How many writes failed because the disk was full."""
        self.damaged: dict[TopicPartition, None] = {}
        """The partitions whose logs have damaged or missing records."""
        self.suspects: dict[TopicPartition, Offset] = {}
        """Offsets that were read again and again: readers may have found the batch damaged."""
        self.set_aside: dict[TopicPartition, None] = {}
        """The partitions that have files of a damaged log (`names.DAMAGED`)."""
        self.lost_records = False
        """Whether a recovery removed damaged batches, and what followed them, since the start."""
        self._on_offline = on_offline

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
