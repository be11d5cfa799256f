"""`make chaos-groups`: its checks find every planted fault, and no fault in a correct run."""

from pathlib import Path

import pytest

from chaos.group_checker import Note, repeated, unread, violations
from chaos.groups import Report, Run, format_report

ENDS = {0: 6}


def notes(*told: tuple[str, int]) -> list[Note]:
    """Of partition 0, one second after the other."""
    return [Note(float(at), kind, 0, offset) for at, (kind, offset) in enumerate(told)]


def later(given: list[Note]) -> list[Note]:
    return [note._replace(at_s=note.at_s + 100) for note in given]


FIRST = notes(
    ("assigned", -1),
    ("processed", 0),
    ("processed", 1),
    ("commits", 2),
    ("committed", 2),
    ("processed", 2),
)


def reads(first: int, end: int) -> list[Note]:
    return notes(("assigned", -1), *(("processed", offset) for offset in range(first, end)))


def test_the_next_member_begins_where_it_was_committed() -> None:
    members = {"a": FIRST, "b": later(reads(2, 6))}
    assert violations(members, ENDS) == []
    assert repeated(members) == 1


def test_a_commit_without_an_answer_may_count() -> None:
    first = [*FIRST, Note(6.0, "commits", 0, 3)]
    assert violations({"a": first, "b": later(reads(2, 6))}, ENDS) == []
    assert violations({"a": first, "b": later(reads(3, 6))}, ENDS) == []


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (reads(1, 6), "began partition 0 at 1"),
        (reads(3, 6), "began partition 0 at 3"),
        ([*reads(2, 4), *later(reads(2, 6))[1:]], "not 4"),
        (reads(2, 5), "1 records of partition 0 were never read"),
    ],
    ids=["read twice", "skipped", "moved back", "not read"],
)
def test_a_planted_fault_is_found(second: list[Note], what: str) -> None:
    (found,) = violations({"a": FIRST, "b": later(second)}, ENDS)
    assert what in found


def test_a_member_that_keeps_its_partition_may_read_on() -> None:
    kept = [*FIRST, *later(reads(3, 6))]
    assert violations({"a": kept}, ENDS) == []
    assert unread({"a": FIRST}, ENDS) == {0: 3}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["librdkafka-range", "librdkafka-consumer", "aiokafka"])
def test_a_short_run_with_one_kind_of_client_finds_nothing(kind: str, tmp_path: Path) -> None:
    report: Report = Run([kind], 0.3, 7, tmp_path, print).go()
    assert report.findings == [], format_report(report)
    assert report.faults
