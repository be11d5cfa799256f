"""Checks whether a correct log could have shown clients what they sent and read.

As `simulation.history_checker`, for millions of records without transactions, in sets and arrays.
`violations` is pure; a test plants losses, duplicates and more, and it must find them.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from chaos.journal import Key, Notes, key_in, key_of, partition_of, tell
from simulation.history_checker import Violation

_NO_RECORD: Key = (1 << 64) - 1


@dataclass(slots=True)
class Reading:
    """One reader, from the start of every partition: the record at each offset."""

    name: str
    keys: dict[int, "array[int]"] = field(default_factory=dict)
    wrong: list[Violation] = field(default_factory=list)

    def saw(self, partition: int, offset: int, value: bytes | None) -> None:
        keys, key = self.keys.setdefault(partition, array("Q")), key_in(value)
        if key is None or partition_of(key) != partition:
            self._find("invented", partition, offset, f"has {value!r}")
            key = _NO_RECORD
        if offset < len(keys):
            self._find("reordered read", partition, offset, f"was at {len(keys)}")
            return
        if offset > len(keys):
            self._find("skipped", partition, offset, f"was at {len(keys)}")
            keys.extend([_NO_RECORD] * (offset - len(keys)))
        keys.append(key)

    def _find(self, kind: str, partition: int, offset: int, what: str) -> None:
        where = f"partition {partition} offset {offset}"
        self.wrong.append(Violation(kind, f"{where}: {self.name} {what}"))


def violations(notes: Notes, readings: Iterable[Reading], final: Reading) -> list[Violation]:
    """All of them; none for a correct log. `final` was read when no writer was left."""
    found = [*final.wrong]
    for partition, keys in sorted(final.keys.items()):
        acked = {k: o for k, o in notes.offsets.items() if partition_of(k) == partition}
        found += _of_writes(notes, partition, keys, acked)
    gone = {partition_of(key) for key in notes.offsets} - final.keys.keys()
    found += [Violation("lost", f"all of partition {partition}") for partition in sorted(gone)]
    for reading in readings:
        found += [*reading.wrong, *_of_reader(reading, final)]
    return found


def _of_writes(
    notes: Notes, partition: int, keys: "array[int]", acked: Mapping[Key, int]
) -> Iterator[Violation]:
    stored = set(keys)
    for key in acked.keys() - stored:
        yield Violation("lost", f"{tell(key)}, acknowledged at offset {acked[key]}, is gone")
    sent: set[Key] = {_NO_RECORD}
    for (writer, to), end in notes.sent.items():
        if to == partition:
            sent.update(range(key_of(writer, to, 0), key_of(writer, to, end)))
    for key in stored - sent:
        yield Violation("invented", f"{tell(key)} is there, and nobody sent it")
    if len(stored) < len(keys):
        for key, times in Counter(keys).items():
            if times > 1 and key != _NO_RECORD:
                yield Violation("duplicate", f"{tell(key)} is there {times} times")
    # A write that the client gave up may still be in flight, and arrive after later ones.
    last: dict[int, Key] = {}
    for key in keys:
        if key in acked:
            if last.get(key >> 48, 0) > key:
                yield Violation("reordered write", f"{tell(key)} comes after a later one")
            last[key >> 48] = key
    for key, offset in acked.items():
        if offset >= 0 and (offset >= len(keys) or keys[offset] != key) and key in stored:
            yield Violation("two values", f"{tell(key)} was acknowledged at offset {offset}")


def _of_reader(reading: Reading, final: Reading) -> Iterator[Violation]:
    """A reader that has finished has read everything, and nothing that is gone now."""
    for partition, keys in final.keys.items():
        seen = reading.keys.get(partition, array("Q"))
        what = f"partition {partition}: {reading.name} has read {len(seen)} of {len(keys)} records"
        if len(seen) < len(keys):
            yield Violation("unseen", what)
        elif len(seen) > len(keys):
            yield Violation("uncommitted read", what)
        common = min(len(seen), len(keys))
        if seen[:common].tobytes() != keys[:common].tobytes():
            for offset, (one, other) in enumerate(zip(seen, keys, strict=False)):
                if one != other and one != _NO_RECORD:
                    is_other = f"{reading.name} has read {tell(one)}, not {tell(other)}"
                    what = f"partition {partition} offset {offset}: {is_other}"
                    yield Violation("two values", what)


def stored_in_spite_of_an_error(notes: Notes, final: Reading) -> int:
    """How many records are in the log though they failed for their writer."""
    failed = {key for *_, key in notes.failed}
    return sum(len(failed.intersection(keys)) for keys in final.keys.values())
