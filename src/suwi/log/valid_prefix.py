"""Finds the valid prefix of a segment after an unclean shutdown, batch by batch.

Base offset and leader epoch are outside a batch's CRC, so they are checked against the neighbouring
batches. A batch that jumps ahead is only *unusual* (compaction leaves gaps, leaders change). If the
next batch fits what came before the jump, the unusual batch was damaged and the log ends before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from suwi.log.segment import RELATIVE_OFFSET_MAX
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import CONTROL_BIT, LOG_OVERHEAD_BYTES, BatchHeader


class _Unusual(NamedTuple):
    """The last batch, which jumped ahead, and the state before it."""

    position: int
    expected: int
    """The expected offset."""
    epoch_before: int
    record_span: int
    """The number of offsets of the batch."""
    is_gap: bool


@dataclass(slots=True)
class ValidPrefix:
    """The accepted batches of one segment; `size_bytes` is where they end."""

    base_offset: Offset
    last_epoch: int
    """The epoch of the batch before this segment, or -1."""
    epoch_starts: Mapping[LeaderEpoch, Offset]
    """From the checkpoint: from its start offset on, an epoch in it is not unusual."""
    epoch_max: LeaderEpoch | None
    end_offset: int | None = None
    """A batch that reaches beyond it is damaged."""
    size_bytes: int = 0
    gaps: int = 0
    expected: int = field(init=False)
    _expected_max: int = field(init=False)
    _unusual: _Unusual | None = None

    def __post_init__(self) -> None:
        self.expected = self.base_offset
        self._expected_max = self.base_offset + RELATIVE_OFFSET_MAX + 1
        if self.end_offset is not None:
            self._expected_max = min(self._expected_max, self.end_offset)

    def accept(self, position: int, header: BatchHeader) -> bool:
        """Whether the batch may follow the accepted ones; if not, the prefix has ended."""
        base_offset, delta = header.base_offset, header.last_offset_delta
        epoch = header.partition_leader_epoch
        if delta < 0 or header.record_count < 0 or base_offset + delta >= self._expected_max:
            return False
        if base_offset == self.expected and epoch == self.last_epoch:
            self._unusual = None
        elif self.epoch_max is not None and epoch > self.epoch_max:
            return False
        elif base_offset < self.expected or epoch < self.last_epoch:
            self._check_last(base_offset, epoch)
            return False
        else:
            self._note_jump(position, header)
        self.expected, self.last_epoch = base_offset + delta + 1, epoch
        self.size_bytes = position + header.batch_length + LOG_OVERHEAD_BYTES
        return True

    def accept_usual(self, batches: list[tuple[int, BatchHeader]], first: int) -> int:
        """Accept the batches from number `first` on that exactly follow the one before.

        Returns the number of the first that does not, or is a control batch: its record must be
        read before `accept` is called.
        """
        number, expected, last_epoch = first, self.expected, self.last_epoch
        expected_max = self._expected_max
        for number in range(first, len(batches)):
            header = batches[number][1]
            delta = header.last_offset_delta
            if (
                header.base_offset != expected
                or header.partition_leader_epoch != last_epoch
                or delta < 0
                or header.record_count < 0
                or header.attributes & CONTROL_BIT
                or expected + delta >= expected_max
            ):
                break
            expected += delta + 1
        else:
            number = len(batches)
        if number > first:
            position, header = batches[number - 1]
            self.expected, self._unusual = expected, None
            self.size_bytes = position + header.size_bytes
        return number

    def skip_to(self, position: int, offset: Offset) -> None:
        """What is before this position of the file is damaged or known; continue with the batch
        there, whose first offset is `offset`."""
        self.size_bytes, self.expected, self._unusual = position, offset, None

    def end_before(self, base_offset: int, epoch: int) -> None:
        """The start of the next segment may show that the last batch of this one is damaged."""
        if base_offset < self.expected or epoch < self.last_epoch:
            self._check_last(base_offset, epoch)

    def reject_last_gap(self) -> None:
        """No batch follows that could confirm a gap before the last batch: reject that batch."""
        if self._unusual is not None and self._unusual.is_gap:
            self._reject(self._unusual)

    def _note_jump(self, position: int, header: BatchHeader) -> None:
        is_gap = header.base_offset > self.expected
        epoch = LeaderEpoch(header.partition_leader_epoch)
        is_new_epoch = epoch > self.last_epoch >= 0 and not (
            epoch in self.epoch_starts and self.epoch_starts[epoch] <= header.base_offset
        )
        self.gaps += is_gap
        self._unusual = (
            _Unusual(position, self.expected, self.last_epoch, header.last_offset_delta + 1, is_gap)
            if is_gap or is_new_epoch
            else None
        )

    def _check_last(self, following_base: int, following_epoch: int) -> None:
        """The next offset or epoch is lower: reject the last batch if its jump was an error."""
        last = self._unusual
        if last is None:
            return
        next_base = last.expected + last.record_span
        moved = last.is_gap and next_base <= following_base < self.expected
        older = last.epoch_before <= following_epoch < self.last_epoch
        if moved or older:
            self._reject(last)

    def _reject(self, last: _Unusual) -> None:
        self.size_bytes = last.position
        self.expected, self.last_epoch = last.expected, last.epoch_before
        self._unusual = None
