"""Checks what copiers have copied: every record once, in order, and whole transactions only.

`violations` is pure; a test plants each kind of violation, and it must find them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.copier import Copy, target_partition
from chaos.journal import key_in, tell
from simulation.history_checker import Violation


@dataclass(slots=True)
class CopiesRead:
    """One reader, from the start of every partition: offsets, with gaps for markers, and values."""

    name: str
    records: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    def saw(self, partition: int, offset: int, value: bytes | None) -> None:
        self.records.setdefault(partition, []).append((offset, value or b""))

    def values(self, partitions: range) -> dict[int, list[bytes]]:
        """Of these partitions, numbered from 0."""
        return {
            number: [value for _, value in self.records.get(partition, [])]
            for number, partition in enumerate(partitions)
        }


def violations(
    source: Mapping[int, Sequence[bytes]], target: Mapping[int, Sequence[bytes]]
) -> list[Violation]:
    """By partition what the source has, and what a read_committed consumer reads of the target."""
    copies = {
        partition: [Copy.decode(copied) for copied in each] for partition, each in target.items()
    }
    return [*_not_once(source, copies), *_out_of_order(source, copies), *_not_whole(copies)]


def _not_once(
    source: Mapping[int, Sequence[bytes]], copies: Mapping[int, Sequence[Copy]]
) -> Iterator[Violation]:
    wanted = {value for values in source.values() for value in values}
    found = Counter(copy.value for each in copies.values() for copy in each)
    for value in sorted(wanted - found.keys()):
        yield Violation("lost", f"{_told(value)} was not copied")
    for value, times in found.items():
        if value not in wanted:
            yield Violation("invented", f"{_told(value)} was copied, and is not in the source")
        elif times > 1:
            yield Violation("duplicate", f"{_told(value)} was copied {times} times")
    for partition, each in copies.items():
        for copy in each:
            if target_partition(copy.value, len(copies)) != partition:
                yield Violation("invented", f"{_told(copy.value)} is in partition {partition}")


def _out_of_order(
    source: Mapping[int, Sequence[bytes]], copies: Mapping[int, Sequence[Copy]]
) -> Iterator[Violation]:
    places = {
        value: (partition, number)
        for partition, values in source.items()
        for number, value in enumerate(values)
    }
    for partition, each in copies.items():
        by_source: dict[int, list[int]] = {}
        for copy in each:
            if copy.value in places:
                of, number = places[copy.value]
                by_source.setdefault(of, []).append(number)
        for of, numbers in by_source.items():
            for before, after in pairwise(numbers):
                if after < before:
                    what = f"offset {after} of the source's partition {of} after {before}"
                    yield Violation("reordered write", f"partition {partition} has {what}")


def _not_whole(copies: Mapping[int, Sequence[Copy]]) -> Iterator[Violation]:
    read: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    aborted: Counter[str] = Counter()
    for each in copies.values():
        for copy in each:
            read[copy.transaction] += 1
            sizes[copy.transaction] = copy.size
            aborted[copy.transaction] += copy.aborts
    for transaction, count in (+aborted).items():
        yield Violation("aborted read", f"{count} records of {transaction} were read")
    for transaction, size in sizes.items():
        if read[transaction] != size:
            what = f"{read[transaction]} of {size} records of {transaction} were read"
            yield Violation("torn transaction", what)


def transactions(target: Mapping[int, Sequence[bytes]]) -> int:
    """How many have been read."""
    return len({Copy.decode(copied).transaction for each in target.values() for copied in each})


def _told(value: bytes) -> str:
    key = key_in(value)
    return repr(value) if key is None else tell(key)
