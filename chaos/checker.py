"""Compares the table with the topic: every record once in each pipeline, no more, no less.

`compare` is pure; a test plants losses, duplicates and changes, and it must find them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Row:
    pipeline: str
    place: Place
    number: int


@dataclass(slots=True)
class Verdict:
    records: int = 0
    rows: int = 0
    missing: list[tuple[str, Place]] = field(default_factory=list)
    repeated: list[tuple[str, Place]] = field(default_factory=list)
    changed: list[tuple[str, Place]] = field(default_factory=list)
    unknown: list[tuple[str, Place]] = field(default_factory=list)
    lost_by_the_log: list[int] = field(default_factory=list)
    """Numbers that were acknowledged and are not in the topic, or are there twice."""

    @property
    def is_exact(self) -> bool:
        return not (
            self.missing or self.repeated or self.changed or self.unknown or self.lost_by_the_log
        )

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.records} records, {self.rows} rows: equal"
        faults = {
            "missing": self.missing,
            "repeated": self.repeated,
            "changed": self.changed,
            "from nowhere": self.unknown,
            "lost or doubled in the topic": self.lost_by_the_log,
        }
        told = [f"{len(found)} {name}: {found[:5]}" for name, found in faults.items() if found]
        return f"{self.records} records, {self.rows} rows; " + "; ".join(told)


def compare(
    sent: Iterable[int],
    topic: Mapping[Place, int],
    rows: Iterable[Row],
    pipelines: Iterable[str],
) -> Verdict:
    """`sent` was acknowledged, `topic` is what can be read there, `rows` are the table's."""
    verdict = Verdict(records=len(topic))
    stored = Counter(topic.values())
    verdict.lost_by_the_log = [number for number in sent if stored[number] != 1]
    found: Counter[tuple[str, Place]] = Counter()
    for row in rows:
        verdict.rows += 1
        key = row.pipeline, row.place
        found[key] += 1
        if row.place not in topic:
            verdict.unknown.append(key)
        elif topic[row.place] != row.number:
            verdict.changed.append(key)
    verdict.repeated = [key for key, times in found.items() if times > 1]
    verdict.missing = [
        (pipeline, place)
        for pipeline in pipelines
        for place in topic
        if (pipeline, place) not in found
    ]
    return verdict
