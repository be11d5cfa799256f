"""The newest offset of every key in a stretch of log, in bounded memory.

Of a key only 128 bits are kept, with an offset 24 bytes in all: open addressing over three arrays.
`put` takes in the records of a batch in log order, `newest` tells which of a batch are not
superseded.
Invariant: for every key that was put, `newest` knows the highest offset it was put with.
"""

from array import array
from collections.abc import Iterable

from suwi.records.record import Span

SLOT_BYTES = 24
_LOAD_MAX = 0.75


def keys_that_fit(size_bytes: int) -> int:
    """How many keys a map of `size_bytes` takes; always one at least."""
    return max(1, int(size_bytes // SLOT_BYTES * _LOAD_MAX))


class OffsetMap:
    __slots__ = ("_first_halves", "_offsets", "_second_halves", "_slots", "count")

    def __init__(self, keys_max: int) -> None:
        self.count = 0
        self._allocate(keys_max)

    def make_room(self, keys_max: int) -> None:
        """Have room for so many keys. While there are none, that costs nothing but memory."""
        if int(keys_max / _LOAD_MAX) + 2 > self._slots:
            assert not self.count
            self._allocate(keys_max)

    def _allocate(self, keys_max: int) -> None:
        self._slots = int(keys_max / _LOAD_MAX) + 2
        nothing = array("q", [0])
        self._first_halves = nothing * self._slots
        self._second_halves = nothing * self._slots
        self._offsets = nothing * self._slots
        """The offset plus one; 0 where the slot is free."""

    def put(self, spans: Iterable[Span], base_offset: int) -> None:
        """Take in a batch's records; one without a key has nothing that could supersede it."""
        first_halves, second_halves, offsets = (
            self._first_halves,
            self._second_halves,
            self._offsets,
        )
        slots = self._slots
        for _, _, delta, key, _ in spans:
            if key is None:
                continue
            # SipHash of two different texts: independent halves, ten times as fast as a digest.
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
                assert self.count < slots, "more keys than the map was made for"
            offsets[slot] = base_offset + delta + 1

    def newest(self, spans: Iterable[Span], base_offset: int) -> list[Span]:
        """Those records of a batch that no later one supersedes. One without a key does not count
        among them: a compacted topic has no place for it."""
        first_halves, second_halves, offsets = (
            self._first_halves,
            self._second_halves,
            self._offsets,
        )
        slots = self._slots
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
