"""Checks what a group has read against what it has committed.

`violations` is pure; a test plants skipped and repeated records, and it must find them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Note(NamedTuple):
    """One line of a member's journal (`chaos.group_member`)."""

    at_s: float
    kind: str
    partition: int
    offset: int


class Commit(NamedTuple):
    at_s: float
    offset: int


def read_notes(journal: Path) -> list[Note]:
    notes = []
    for line in journal.read_text().splitlines():
        at_s, kind, partition, offset = line.split()
        notes.append(Note(float(at_s), kind, int(partition), int(offset)))
    return notes


def violations(members: Mapping[str, list[Note]], ends: Mapping[int, int]) -> list[str]:
    """What is wrong with a group that commits after processing; `ends` of the partitions.

    Whoever gets a partition begins at the offset that was committed: not below one whose
    acknowledgement came before (read twice), not above all that were sent (skipped). Some clients
    read on where they were if they are assigned what they had.
    """
    acked = _commits(members, "committed")
    sent = _commits(members, "commits")
    found: list[str] = []
    for name, notes in members.items():
        since_s: dict[int, float] = {}
        position: dict[int, int] = {}
        had: dict[int, int] = {}
        for note in notes:
            if note.kind == "assigned":
                since_s[note.partition] = note.at_s
                if note.partition in position:
                    had[note.partition] = position.pop(note.partition)
            elif note.kind == "processed":
                expected = position.get(note.partition)
                if expected is None:
                    assigned_s = since_s.get(note.partition, note.at_s)
                    low = _highest(acked.get(note.partition, ()), assigned_s)
                    high = _highest(sent.get(note.partition, ()), note.at_s)
                    goes_on = note.offset == had.get(note.partition)
                    if not (low <= note.offset <= high or goes_on):
                        found.append(
                            f"{name} began partition {note.partition} at {note.offset}; "
                            f"{low} was acknowledged and {high} sent before"
                        )
                elif note.offset != expected:
                    found.append(
                        f"{name} read {note.offset} of partition {note.partition}, not {expected}"
                    )
                position[note.partition] = note.offset + 1
    return found + _unread(members, ends)


def unread(members: Mapping[str, list[Note]], ends: Mapping[int, int]) -> dict[int, int]:
    """By partition how many records nobody has processed."""
    read: dict[int, set[int]] = {partition: set() for partition in ends}
    for notes in members.values():
        for note in notes:
            if note.kind == "processed":
                read[note.partition].add(note.offset)
    missing = {partition: end - len(read[partition]) for partition, end in ends.items()}
    return {partition: count for partition, count in missing.items() if count}


def repeated(members: Mapping[str, list[Note]]) -> int:
    """How many records were processed again: they had not been committed."""
    offsets = [
        (note.partition, note.offset)
        for notes in members.values()
        for note in notes
        if note.kind == "processed"
    ]
    return len(offsets) - len(set(offsets))


def _unread(members: Mapping[str, list[Note]], ends: Mapping[int, int]) -> list[str]:
    return [
        f"{count} records of partition {partition} were never read"
        for partition, count in unread(members, ends).items()
    ]


def _commits(members: Mapping[str, list[Note]], kind: str) -> dict[int, list[Commit]]:
    commits: dict[int, list[Commit]] = {}
    for notes in members.values():
        for note in notes:
            if note.kind == kind:
                commits.setdefault(note.partition, []).append(Commit(note.at_s, note.offset))
    return commits


def _highest(commits: Iterable[Commit], before_s: float) -> int:
    return max((commit.offset for commit in commits if commit.at_s < before_s), default=0)
