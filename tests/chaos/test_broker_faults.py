"""`make chaos-brokers`: its checks find every planted fault, and no fault in a correct run."""

import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.broker_faults import Plan, Run, three_brokers
from chaos.faults import KINDS, plan
from chaos.journal import Journal, Notes, read_journal, value_of
from chaos.log_files import Compared
from chaos.record_checker import Reading, stored_in_spite_of_an_error, violations
from chaos.report import Report, complaints, format_report

NAME, WRITER = "numbers-0", 1
SENT = [value_of(WRITER, 0, number) for number in range(5)]


def read(stored: list[bytes], name: str = "the consumer afterwards") -> Reading:
    reading = Reading(name)
    for offset, value in enumerate(stored):
        reading.saw(0, offset, value)
    return reading


def notes_of(tmp_path: Path, *offsets: int) -> Notes:
    """A writer has sent as many records, all acknowledged at these offsets."""
    journal, notes = Journal(tmp_path / "journal", WRITER), Notes()
    journal.sends(0, len(offsets))
    for number, offset in enumerate(offsets):
        journal.acked(0, number, offset)
    journal.close()
    read_journal(tmp_path / "journal", "writer-1", WRITER, notes)
    assert notes.acked == {"writer-1": len(offsets)}
    assert not notes.unanswered
    assert not notes.broken_off
    return notes


def judged(tmp_path: Path, stored: list[bytes]) -> set[str]:
    """The kinds of violations if five records were acknowledged and these are read."""
    # A duplicate's acknowledgement may have no offset: it does not matter here.
    return {found.kind for found in violations(notes_of(tmp_path, *[-1] * 5), [], read(stored))}


def test_what_was_acknowledged_once_in_order_and_alone_is_right(tmp_path: Path) -> None:
    assert judged(tmp_path, SENT) == set()


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ([], "lost"),
        (SENT[:2] + SENT[3:], "lost"),
        ([*SENT, SENT[4]], "duplicate"),
        ([*SENT[:3], SENT[1], *SENT[3:]], "duplicate"),
        ([SENT[0], SENT[2], SENT[1], *SENT[3:]], "reordered write"),
        ([*SENT, value_of(WRITER, 0, 5)], "invented"),
        ([*SENT, value_of(2, 0, 0)], "invented"),
        ([*SENT, value_of(WRITER, 1, 0)], "invented"),
        ([*SENT, SENT[0] + b"."], "invented"),
        ([*SENT, SENT[0][:99] + b"."], "invented"),
    ],
    ids=[
        *("nothing", "loss", "duplicate", "old duplicate", "reorder", "not sent", "stranger"),
        *("other partition", "longer", "changed"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, stored: list[bytes], kind: str) -> None:
    assert kind in judged(tmp_path, stored)


def test_a_record_at_another_offset_than_was_acknowledged_is_found(tmp_path: Path) -> None:
    found = violations(notes_of(tmp_path, 0, 2, 1), [], read(SENT[:3]))
    assert [each.kind for each in found] == ["two values"] * 2


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ([(0, 0), (1, 1), (0, 0), (2, 2)], "reordered read"),
        ([(0, 0), (2, 2)], "skipped"),
        ([(0, 0), (1, 1)], "unseen"),
        ([(0, 0), (1, 1), (2, 2), (3, 3)], "uncommitted read"),
        ([(0, 0), (1, 2), (2, 1)], "two values"),
    ],
)
def test_what_a_reader_must_not_see_is_found(
    tmp_path: Path, places: list[tuple[int, int]], kind: str
) -> None:
    reader = Reading("the consumer beside the writers")
    for offset, number in places:
        reader.saw(0, offset, SENT[number])
    found = violations(notes_of(tmp_path, 0, 1, 2), [reader], read(SENT[:3]))
    assert {each.kind for each in found} == {kind}


def test_a_record_with_an_error_may_be_stored_or_not_but_not_twice(tmp_path: Path) -> None:
    journal, notes = Journal(tmp_path / "journal", WRITER), Notes()
    journal.sends(0, 2)
    for number in range(2):
        journal.failed(0, number, "_MSG_TIMED_OUT")
    journal.close()
    read_journal(tmp_path / "journal", "writer-1", WRITER, notes)
    assert violations(notes, [], read(SENT[:1])) == []
    assert stored_in_spite_of_an_error(notes, read(SENT[:1])) == 1
    assert [each.kind for each in violations(notes, [], read(SENT[:1] * 2))] == ["duplicate"]


def test_a_writer_that_broke_off_or_heard_nothing_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", WRITER)
    journal.sends(0, 2)
    journal.acked(0, 0, 0)
    journal.fatal("_FENCED fenced")
    journal.close()
    whole = (tmp_path / "journal").read_text()
    (tmp_path / "journal").write_text(whole.removesuffix("end\n"))
    report = Report(1, seed=1, faults=Counter(kill=1))
    read_journal(tmp_path / "journal", "writer-1", WRITER, report.notes)
    assert complaints(report) == [
        "fatal error of writer-1: _FENCED fenced",
        "writer-1 got no response for 1 records",
        "writer-1 ended early",
    ]
    assert "fatal client errors: 1; unanswered: 1" in format_report(report)


# -- log files ---------------------------------------------------------------------------------


def batch(base: int, records: int, content: bytes, epoch: int = 0) -> bytes:
    """A batch with the fields that the comparison reads."""
    behind = struct.pack(">ibIhiqqqhii", 0, 2, 0, 0, records - 1, 0, 0, 77, epoch, 0, records)
    return struct.pack(">qi", base, len(behind) + len(content)) + behind + content


def replica(directory: Path, *files: tuple[int, bytes]) -> Path:
    directory.mkdir()
    for base, content in files:
        (directory / f"{base:020}.log").write_bytes(content)
    return directory


def test_replicas_may_have_other_segments_and_a_tail_above_the_watermark(tmp_path: Path) -> None:
    one, two, tail = batch(0, 2, b"a"), batch(2, 3, b"b", epoch=4), batch(5, 1, b"c")
    compared = Compared()
    directories = {
        1: replica(tmp_path / "1", (0, one + two)),
        2: replica(tmp_path / "2", (0, one), (2, two + tail)),
    }
    compared.add(NAME, directories, 5)
    assert compared.differing == []
    assert compared.size_bytes == len(one + two)
    assert compared.producers == {77: 4}


def test_a_byte_that_differs_below_the_watermark_is_found(tmp_path: Path) -> None:
    directories = {
        1: replica(tmp_path / "1", (0, batch(0, 2, b"abc"))),
        2: replica(tmp_path / "2", (0, batch(0, 2, b"abd"))),
        3: replica(tmp_path / "3", (0, b"")),
    }
    compared = Compared()
    compared.add(NAME, directories, 2)
    assert len(compared.differing) == 2
    assert "the same up to byte 63" in compared.differing[0]


# -- faults ------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_faults_again_and_every_kind() -> None:
    faults = plan(100, (1, 2, 3), 4, seed=7)
    assert faults == plan(100, (1, 2, 3), 4, seed=7)
    assert faults != plan(100, (1, 2, 3), 4, seed=8)
    kinds = Counter(fault.kind for fault in faults)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 11


def test_a_machine_loses_power_only_while_all_replicas_are_in_sync() -> None:
    faults = plan(1_000, (1, 2, 3), 4, seed=7)
    assert any(fault.is_hasty for fault in faults)
    for before, fault in pairwise(faults):
        if fault.kind == "power loss":
            assert not before.is_hasty
            assert not fault.is_hasty


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_run_does_its_faults_and_is_right(tmp_path: Path) -> None:
    run = Run(Plan.of_brokers(3, 5, 5), three_brokers(tmp_path), tmp_path, say=lambda _: None)
    report = run.go()
    assert complaints(report) == []
    assert report.faults.total() == 3
    assert len(report.notes.acked) == 4
    assert report.records >= report.notes.acked.total() > 0
