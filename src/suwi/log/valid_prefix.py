"""How far a segment may be believed after an unclean stop, batch by batch.

Base offset and leader epoch lie outside a batch's CRC, so they are judged by their neighbours: a
batch that jumps ahead is only *unusual* (compaction leaves gaps, leaders change), but if the next
one denies the jump, the unusual one was damaged and the log ends before it.
"""

from dataclasses import dataclass, field

from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import BatchHeader

_RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Mark:
    """A point up to which all batches are accepted."""

    position: int
    expected: int
    last_epoch: int


@dataclass(slots=True)
class ValidPrefix:
    """The accepted batches of one segment; `size_bytes` is where they end."""

    base_offset: Offset
    last_epoch: int
    """The epoch of the batch before this segment, or -1."""
    known_epochs: frozenset[LeaderEpoch]
    """Epochs that the checkpoint names: to see one of these is not unusual."""
    epoch_max: LeaderEpoch | None
    size_bytes: int = 0
    gaps: int = 0
    expected: int = field(init=False)
    _before_unusual: _Mark | None = None
    _last_is_gap: bool = False

    def __post_init__(self) -> None:
        self.expected = self.base_offset

    def accept(self, position: int, header: BatchHeader) -> bool:
        """Whether the batch may follow on those accepted before; if not, the prefix has ended."""
        epoch = header.partition_leader_epoch
        if not self._is_possible(header):
            return False
        if header.base_offset < self.expected or epoch < self.last_epoch:
            self._take_back()
            return False
        self._last_is_gap = header.base_offset > self.expected
        is_new_epoch = position > 0 and epoch > self.last_epoch and epoch not in self.known_epochs
        self._before_unusual = (
            _Mark(position, self.expected, self.last_epoch)
            if self._last_is_gap or is_new_epoch
            else None
        )
        self.gaps += self._last_is_gap
        self.expected, self.last_epoch = header.next_offset, epoch
        self.size_bytes = position + header.size_bytes
        return True

    def doubt_last_gap(self) -> None:
        """Nothing follows that could confirm a gap before the last batch: give that batch up."""
        if self._last_is_gap:
            self._take_back()

    def _take_back(self) -> None:
        mark = self._before_unusual
        if mark is not None:
            self.size_bytes, self.expected, self.last_epoch = (
                mark.position,
                mark.expected,
                mark.last_epoch,
            )

    def _is_possible(self, header: BatchHeader) -> bool:
        return (
            (self.epoch_max is None or header.partition_leader_epoch <= self.epoch_max)
            and header.last_offset - self.base_offset <= _RELATIVE_OFFSET_MAX
            and header.record_count >= 0
            and header.last_offset_delta >= 0
        )
