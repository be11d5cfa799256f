"""The leader epochs of one log and their file, `leader-epoch-checkpoint`.

Invariant: before a batch of a new epoch is appended, the file has that epoch with its start offset.
"""

import logging

from suwi.log import checkpoints, names
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.partition_directory import PartitionDirectory
from suwi.model.errors import FencedLeaderEpoch, KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset

log = logging.getLogger(__name__)


class EpochCheckpoint:
    __slots__ = ("_directory", "epochs", "is_written")

    def __init__(
        self, directory: PartitionDirectory, epochs: LeaderEpochCache, *, is_written: bool
    ) -> None:
        self._directory = directory
        self.epochs = epochs
        self.is_written = is_written
        """Whether the file has all changes; a full disk may have prevented it."""

    def begin(self, epoch: LeaderEpoch, start: Offset) -> None:
        """A leader appends in `epoch` from `start` on. Raises FencedLeaderEpoch."""
        if epoch < self.epochs.latest:
            raise FencedLeaderEpoch(
                f"leader epoch {epoch} is older than {self.epochs.latest} in the log"
            )
        self.assign(epoch, start)

    def assign(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Epoch `epoch` starts at `start`; writes the file if that is new."""
        if self.epochs.assign(epoch, start):
            self.is_written = False
        self.write()

    def write(self) -> None:
        """Write pending changes. Raises KafkaStorageError."""
        if self.is_written:
            return
        directory = self._directory
        path = f"{directory.path}/{names.LEADER_EPOCHS}"
        try:
            checkpoints.write_epochs(directory.files.disk, path, self.epochs.entries())
        except OSError as error:
            raise directory.failed(error, directory.generation) from error
        self.is_written = True
        directory.names_version += 1

    def truncate_start(self, offset: Offset) -> None:
        if self.epochs.truncate_start(offset):
            self._write_if_possible()

    def truncate_end(self, offset: Offset) -> None:
        if self.epochs.truncate_end(offset):
            self._write_if_possible()

    def clear(self) -> None:
        self.epochs.truncate_end(Offset(0))
        self._write_if_possible()

    def _write_if_possible(self) -> None:
        self.is_written = False
        self.write_if_possible()

    def write_if_possible(self) -> None:
        """Opening a log and removing records must not fail on a full disk: the file may be written
        later."""
        try:
            self.write()
        except KafkaStorageError as error:
            fields = {"dir": self._directory.path, "reason": str(error)}
            log.warning("leader epoch checkpoint write deferred", extra=fields)
