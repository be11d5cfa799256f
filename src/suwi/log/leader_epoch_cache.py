"""The leader epochs of one log: each epoch with its start offset.

`LeaderEpochCache` is a pure state machine over a sorted list; `EpochCheckpoint` keeps it in its
file, `leader-epoch-checkpoint`.
Invariant: epochs and start offsets are both strictly increasing.
"""

import logging
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from suwi.log import checkpoints, names
from suwi.log.directory_state import PartitionDirectory
from suwi.model.errors import FencedLeaderEpoch, KafkaStorageError
from suwi.model.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

log = logging.getLogger(__name__)


class LeaderEpochCache:
    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[LeaderEpoch, Offset]] | None = None) -> None:
        self._entries: list[tuple[LeaderEpoch, Offset]] = []
        for epoch, start in entries or []:
            self.assign(epoch, start)

    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        return list(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        return self._entries[-1][0] if self._entries else NO_EPOCH

    @property
    def latest_or_none(self) -> LeaderEpoch | None:
        return self._entries[-1][0] if self._entries else None

    def restore(self, entries: list[tuple[LeaderEpoch, Offset]]) -> None:
        """Undo what was observed since `entries` was taken."""
        self._entries = list(entries)

    def assign(self, epoch: LeaderEpoch, start: Offset) -> bool:
        """Epoch `epoch` starts at `start`. Returns whether that changed anything.

        Contradicting entries, with a later epoch or a later start, are removed.
        """
        if epoch < 0 or start < 0:
            return False
        if self._entries and self._entries[-1][0] >= epoch and self._entries[-1][1] <= start:
            return False
        while self._entries and (self._entries[-1][0] >= epoch or self._entries[-1][1] >= start):
            self._entries.pop()
        self._entries.append((epoch, start))
        return True

    def observe(self, epoch: LeaderEpoch, offset: Offset) -> None:
        """There is a batch of `epoch` at `offset`: correct contradicting or missing entries."""
        if epoch < 0:
            return
        start = min([offset, *(s for e, s in self._entries if e == epoch)])
        before = [entry for entry in self._entries if entry[0] < epoch and entry[1] < start]
        after = [entry for entry in self._entries if entry[0] > epoch and entry[1] > offset]
        self._entries = [*before, (epoch, start), *after]

    def end_of(self, requested: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch ≤ `requested` and its end offset (KIP-279); (-1, -1) if unknown."""
        if requested == self.latest and requested != NO_EPOCH:
            return requested, log_end
        after = bisect_right(self._entries, requested, key=lambda entry: entry[0])
        if requested == NO_EPOCH or not self._entries or after == len(self._entries):
            return NO_EPOCH, NO_OFFSET
        if after == 0:
            return requested, self._entries[0][1]
        return self._entries[after - 1][0], self._entries[after][1]

    def divergence(
        self, last_epoch: LeaderEpoch, offset: Offset, log_end: Offset
    ) -> tuple[LeaderEpoch, Offset] | None:
        """Where a reader's log that ends at `offset` with `last_epoch` diverges from this one: the
        largest epoch that both may have, and its end offset here. None if it does not diverge.

        Raises KeyError if the epoch is unknown here.
        """
        epoch, end = self.end_of(last_epoch, log_end)
        if epoch < 0:
            raise KeyError(last_epoch)
        return (epoch, end) if epoch < last_epoch or end < offset else None

    def truncation_point(self, epoch: LeaderEpoch, end: Offset, log_end: Offset) -> Offset:
        """How much of this log can match a leader that has `epoch` up to `end`.

        KIP-279: if this log has only an older epoch, up to the end of that one; then fetch again.
        """
        _, own_end = self.end_of(epoch, log_end)
        return max(min(own_end, end), Offset(0))

    def all_newer_than(self, epoch: LeaderEpoch) -> bool:
        """Whether neither `epoch` nor any older epoch is known."""
        return not self._entries or self._entries[0][0] > epoch

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch of the record at `offset`; -1 if unknown."""
        after = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[after - 1][0] if after else NO_EPOCH

    def truncate_end(self, offset: Offset) -> bool:
        """Remove the epochs that start at or after `offset`. Returns whether anything changed."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        return len(self._entries) < before

    def truncate_start(self, offset: Offset) -> bool:
        """Remove the epochs whose records are all before the one before `offset`. The epoch of that
        one stays: with it a replica whose log ends here can show that it has the same history.
        Returns whether anything changed."""
        before = bisect_left(self._entries, offset, key=lambda entry: entry[1])
        if before <= 1:
            return False
        del self._entries[: before - 1]
        return True


@dataclass(slots=True, eq=False, repr=False)
class EpochCheckpoint:
    """The leader epochs of one log and their file.
    Invariant: before a batch of a new epoch is appended, the file has that epoch with its start
    offset."""

    _directory: PartitionDirectory
    epochs: LeaderEpochCache
    is_written: bool = field(kw_only=True)
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
