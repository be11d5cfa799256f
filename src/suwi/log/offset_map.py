"""The newest offset of every key in a range of a log, in bounded memory.

A key is stored as a 128-bit hash, with its offset in 24 bytes: open addressing over three arrays.
`put` adds the records of a batch in log order, `newest` returns the records of a batch that are not
superseded.
Invariant: for every added key, `newest` uses its highest offset.
"""

from array import array
from collections.abc import Iterable

from suwi.records.record import Span

SLOT_BYTES = 24
_LOAD_MAX = 0.75


def keys_that_fit(size_bytes: int) -> int:
    """How many keys a map of `size_bytes` can hold; at least one."""
    return max(1, int(size_bytes // SLOT_BYTES * _LOAD_MAX))


class OffsetMap:
    __slots__ = ("_first_halves", "_offsets", "_second_halves", "_slots", "count")

    def __init__(self, keys_max: int) -> None:
        self.count = 0
        self._allocate(keys_max)

    def reserve(self, keys_max: int) -> None:
        """Ensure capacity for `keys_max` keys. Only for an empty map."""
        if int(keys_max / _LOAD_MAX) + 2 > self._slots:
            assert not self.count
            self._allocate(keys_max)

    def _allocate(self, keys_max: int) -> None:
        self._slots = int(keys_max / _LOAD_MAX) + 2
        zero = array("q", [0])
        self._first_halves = zero * self._slots
        self._second_halves = zero * self._slots
        self._offsets = zero * self._slots
        """The offset plus one; 0 for a free slot."""

    def put(self, spans: Iterable[Span], base_offset: int) -> None:
        """Add a batch's records; a record without a key is ignored, nothing can supersede it."""
        first_halves, second_halves = self._first_halves, self._second_halves
        offsets, slots = self._offsets, self._slots
        for _, _, delta, key, _ in spans:
            if key is None:
                continue
            # SipHash of two different inputs: independent halves, ten times as fast as a digest.
            first = hash(key)
            slot = first % slots
            while offsets[slot]:
                if first_halves[slot] == first and second_halves[slot] == hash(key + b"\0"):
                    break
                slot += 1
                if slot == slots:
                    slot = 0
            else:
                first_halves[slot] = first
                second_halves[slot] = hash(key + b"\0")
                self.count += 1
                assert self.count < slots, "more keys than the map's capacity"
            offsets[slot] = base_offset + delta + 1

    def newest(self, spans: Iterable[Span], base_offset: int) -> list[Span]:
        """The records of a batch that no later record supersedes. Records without a key are not
        included: a compacted topic does not keep them."""
        first_halves, second_halves = self._first_halves, self._second_halves
        offsets, slots = self._offsets, self._slots
        found: list[Span] = []
        for span in spans:
            key = span[3]
            if key is None:
                continue
            first = hash(key)
            slot = first % slots
            while newest := offsets[slot]:
                if first_halves[slot] == first and second_halves[slot] == hash(key + b"\0"):
                    break
                slot += 1
                if slot == slots:
                    slot = 0
            if base_offset + span[2] + 1 >= newest:
                found.append(span)
        return found
