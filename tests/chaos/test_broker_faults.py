"""`make chaos-brokers`: its checks find every planted fault, and no fault in a correct run."""

import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.broker_faults import Plan, Report, Run, complaints, format_report, three_brokers
from chaos.faults import KINDS, plan
from chaos.journal import Journal, Notes, read_journal, stored_in_spite_of_an_error, value_of
from chaos.log_files import Compared
from suwi.sim.history import History
from suwi.sim.history_checker import violations

WRITER, TOPIC, NAME = "writer-1", "numbers", "numbers-0"
SENT = [value_of(WRITER, 0, number) for number in range(5)]


def judged(tmp_path: Path, stored: list[bytes]) -> set[str]:
    """The kinds of violations if five records were acknowledged and these are read."""
    journal = Journal(tmp_path / "journal")
    for number in range(5):
        journal.sent(0, number)
    for number in range(5):
        # A duplicate's acknowledgement may have no offset: it does not matter here.
        journal.acked(0, number, -1)
    journal.close()
    history, notes = History(), Notes()
    read_journal(tmp_path / "journal", WRITER, TOPIC, history, notes)
    assert notes.acked == {WRITER: 5}
    assert not notes.unanswered
    assert not notes.broken_off
    history.final(NAME, enumerate(stored))
    return {violation.kind for violation in violations(history)}


def test_what_was_acknowledged_once_in_order_and_alone_is_right(tmp_path: Path) -> None:
    assert judged(tmp_path, SENT) == set()


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (SENT[:2] + SENT[3:], "lost"),
        ([*SENT, SENT[4]], "duplicate"),
        ([*SENT[:3], SENT[1], *SENT[3:]], "duplicate"),
        ([SENT[0], SENT[2], SENT[1], *SENT[3:]], "reordered write"),
        ([*SENT, value_of(WRITER, 0, 5)], "invented"),
        ([*SENT, value_of("another", 0, 0)], "invented"),
        ([*SENT, SENT[0] + b"."], "invented"),
    ],
    ids=["loss", "duplicate", "old duplicate", "reorder", "not sent", "stranger", "changed"],
)
def test_a_planted_fault_is_found(tmp_path: Path, stored: list[bytes], kind: str) -> None:
    assert kind in judged(tmp_path, stored)


def test_a_record_at_another_offset_than_was_acknowledged_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(2):
        journal.sent(0, number)
        journal.acked(0, number, number + 7)
    journal.close()
    history = History()
    read_journal(tmp_path / "journal", WRITER, TOPIC, history, Notes())
    history.final(NAME, [(8, SENT[0]), (9, SENT[1])])
    assert {violation.kind for violation in violations(history)} == {"two values"}


def test_a_record_with_an_error_may_be_stored_or_not_but_not_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(2):
        journal.sent(0, number)
        journal.failed(0, number, "_MSG_TIMED_OUT")
    journal.close()
    history, notes = History(), Notes()
    read_journal(tmp_path / "journal", WRITER, TOPIC, history, notes)
    history.final(NAME, [(0, SENT[0])])
    assert violations(history) == []
    assert stored_in_spite_of_an_error(history, notes) == 1
    history.final(NAME, [(0, SENT[0]), (1, SENT[0])])
    assert {violation.kind for violation in violations(history)} == {"duplicate"}


def test_a_writer_that_broke_off_or_heard_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("sent 0 0\nsent 0 1\nacked 0 0 0\nfatal _FENCED fenced\n")
    report = Report(1, seed=1, faults=Counter(kill=1))
    read_journal(tmp_path / "journal", WRITER, TOPIC, History(), report.notes)
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
@pytest.mark.timeout(400)
def test_a_short_run_does_its_faults_and_is_right(tmp_path: Path) -> None:
    run = Run(Plan.of_brokers(3, 5, 5), three_brokers(tmp_path), tmp_path, say=lambda _: None)
    report = run.go()
    assert complaints(report) == []
    assert report.faults.total() == 3
    assert len(report.notes.acked) == 4
    assert report.records >= report.notes.acked.total() > 0
