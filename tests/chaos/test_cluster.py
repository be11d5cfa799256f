"""`make chaos-cluster`: its checks find what a group skips, its ledger adds up, and a short run."""

import json
from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from chaos.cluster import process_plan, run
from chaos.group_worker import read_work
from chaos.journal import Notes
from chaos.ledger import add_run, last_run, read_ledger, write_page
from chaos.process_faults import BAG, PROCESS_KINDS
from chaos.report import Report, complaints, format_report
from chaos.time_line import draw
from simulation.history_checker import Violation
from suwi.local_cluster.zookeeper import why_unavailable
from tests.local_cluster.ports import free_ports


def journals(tmp_path: Path, *contents: str) -> list[Path]:
    paths = [tmp_path / f"member-{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return paths


def test_records_that_members_processed_together_are_not_missing(tmp_path: Path) -> None:
    work = read_work(journals(tmp_path, "0 0 5\n1 0 3\n", "0 5 9\n1 2 4\n"))
    assert work.missing({0: 9, 1: 4}) == {}
    assert (work.processed, work.again) == (13, 1)


def test_a_gap_and_a_missing_end_are_found(tmp_path: Path) -> None:
    work = read_work(journals(tmp_path, "0 0 5\n0 6 9\n"))
    assert work.missing({0: 10, 1: 2}) == {0: [(5, 6), (9, 10)], 1: [(0, 2)]}


def test_an_incomplete_line_is_not_read(tmp_path: Path) -> None:
    assert read_work(journals(tmp_path, "0 0 5\n0 5 1")).missing({0: 7}) == {0: [(5, 7)]}


def test_a_plan_can_be_resumed_after_any_fault() -> None:
    whole = process_plan(7, 0, 40, 1, list(BAG)).faults
    rest = process_plan(7, 12, 28, 1, list(BAG)).faults
    assert [fault.number for fault in rest] == list(range(13, 41))
    assert {fault.kind for fault in whole} == set(BAG)


def test_every_kind_can_be_named_in_a_list_with_commas() -> None:
    assert [kind for kind in PROCESS_KINDS if "," in kind] == []


def test_a_run_without_a_fault_is_no_proof() -> None:
    assert "there was no fault" in complaints(Report(0, 7))


def test_the_ledger_adds_runs_up_and_tells_where_to_resume(tmp_path: Path) -> None:
    ledger = tmp_path / "chaos" / "ledger.jsonl"
    for first, faults in ((0, 4), (4, 3)):
        report = Report(0, 7, Counter(kill=faults), {"kill": [2.0] * faults}, {"kill": [0.5]})
        report.notes = Notes(acked=Counter(writer=1_000))
        add_run(ledger, report, first, ["kill", "pause"], complaints(report))
    assert last_run(ledger) == (7, 7, ["kill", "pause"])
    assert [line["acked"] for line in read_ledger(ledger)] == [1_000, 1_000]
    write_page(ledger)
    page = (ledger.parent / "README.md").read_text()
    assert "runs: 2, 2 of them without a complaint, 0 minutes; faults: 7" in page
    assert "2,000 acknowledged records of 100 bytes: **0 lost, 0 duplicated" in page
    assert (ledger.parent / "time-line.svg").exists()
    assert "| kill | 7 | 2.0 s | 2.0 s | 0.5 s | 0.5 s |" in page


def test_runs_with_copiers_are_added_up_and_resumed_for_themselves(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with_copiers = Report(0, 8, Counter(kill=2), copiers=["aiokafka"], copied=3_000)
    with_copiers.transactions, with_copiers.copies_silence_s = 40, 12.3
    with_copiers.copy_violations = [Violation("torn transaction", "1 of 2 records of t1 were read")]
    add_run(ledger, with_copiers, 0, ["kill"], complaints(with_copiers))
    with pytest.raises(SystemExit, match="no such run"):
        last_run(ledger)
    add_run(ledger, Report(0, 7, Counter(pause=3)), 0, ["pause"], [])
    assert last_run(ledger) == (7, 3, ["pause"])
    assert last_run(ledger, with_copiers=True) == (8, 2, ["kill"])
    write_page(ledger)
    page = (tmp_path / "README.md").read_text()
    assert (
        "1 runs with copiers copied 3,000 records in 40 transactions: **1 torn, 0 aborted" in page
    )
    assert "had no new record for 12 s at most" in page
    assert "| kill, with copiers | 2 |" in page
    told = format_report(with_copiers)
    assert "copied: 3000 records in 40 transactions; longest silence of a partition 12.3 s" in told
    assert "1 torn, 0 aborted, 1 violations in all" in told


def test_wrong_copies_are_not_counted_as_wrong_writes(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    report = Report(0, 8, Counter(kill=2), copiers=["aiokafka"], copied=3_000)
    report.notes = Notes(acked=Counter(writer=1_000))
    report.copy_violations = [Violation("duplicate", "record 1 was copied 2 times")] * 7
    add_run(ledger, report, 0, ["kill"], complaints(report))
    write_page(ledger)
    page = (tmp_path / "README.md").read_text()
    writers = "writers: 1,000 acknowledged records of 100 bytes"
    assert f"{writers}: **0 lost, 0 duplicated, 0 reordered**" in page
    assert "copies of 1 of them: **0 lost, 7 duplicated, 0 reordered**" in page
    assert "counted together" not in page
    told = format_report(report)
    assert "verdict: 0 lost, 0 duplicated" in told
    assert "verdict of the copies: 0 lost, 7 duplicated" in told


def test_one_count_of_an_older_run_is_not_called_that_of_the_writers(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    report = Report(0, 8, Counter(kill=2), copiers=["aiokafka"], copied=3_000)
    add_run(ledger, report, 0, ["kill"], [])
    (line,) = read_ledger(ledger)
    old = {key: line[key] for key in line if key not in ("copies_lost", "copies_duplicated")}
    old |= {"acked": 1_000, "duplicated": 7}
    del old["copies_reordered"]
    ledger.write_text(json.dumps(old) + "\n")
    write_page(ledger)
    page = (tmp_path / "README.md").read_text()
    assert "writers: 0 acknowledged records" in page
    assert "counted together: **0 lost, 7 duplicated, 0 reordered**" in page


def test_a_time_line_shows_every_fault_in_the_row_of_its_kind() -> None:
    spans = [("kill", 1.0, 2.0, 3.0), ("kill", 4.0, 4.0, 4.0), ("<pause>", 5.0, 6.0, 7.0)]
    picture = fromstring(draw([10, 0, 5], spans))
    texts = [text.text for text in picture.iterfind("{*}text")]
    assert texts[-2:] == ["kill (2)", "<pause> (1)"]
    boxes = Counter(box.get("fill") for box in picture.iterfind("{*}rect"))
    legend = 1
    assert boxes == {"white": 1, "#c44e52": 3 + legend, "#f0b8b0": 3 + legend}


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.skipif(why_unavailable() is not None, reason="no ZooKeeper here")
def test_a_short_run_with_processes_is_right(tmp_path: Path) -> None:
    bag = ["kill", "isolation"]
    report = run(process_plan(5, 0, 2, 5, bag), tmp_path, free_ports())
    assert complaints(report) == []
    assert report.faults.total() == 2
    assert report.processed == report.records >= report.notes.acked.total() > 0
