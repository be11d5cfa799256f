"""Recordings: what is in one, that it is small, and that making one changes nothing."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from simulation.one_seed import Failure, try_seed
from simulation.seeded_run import Options, run_seed
from suwi.lab import events
from suwi.lab.child import run
from suwi.lab.event_text import event_text
from suwi.lab.events import Recording, RecordingError, Replicas, read, write
from suwi.lab.scenario import parse
from suwi.lab.text import LANGUAGES
from tests.replica.test_transcripts import TRANSCRIPTS

ROOT = Path(__file__).parents[2]
FAIL_OVER = """topic orders b1 b2 b3
produce b1 acks=all "a"

cut b1 <-> b2
cut b1 <-> b3
produce b1 acks=1 "old"

kill b1
wait 4s

produce b2 acks=all "new"

heal
start b1
"""


@pytest.fixture(scope="module")
def fail_over() -> Recording:
    return run(parse(FAIL_OVER))


def of(recording: Recording, kind: type[events.Event]) -> list[events.Event]:
    return [event for event in recording.events if isinstance(event, kind)]


def test_what_is_written_is_read_again(fail_over: Recording) -> None:
    assert read(write(fail_over)) == fail_over


def test_the_sum_of_the_events_is_the_state_at_the_end(fail_over: Recording) -> None:
    replicas = Replicas()
    for event in fail_over.events:
        replicas.add(event)
    assert replicas.leaders["orders-0"] == (2, 1)
    assert set(replicas.in_sync["orders-0"]) == {1, 2, 3}
    assert replicas.down == set()
    for broker in (1, 2, 3):
        view = replicas.replicas["orders-0", broker]
        assert (view.end, view.high_watermark, view.last_stable, view.log_start) == (2, 2, 2, 0)
        assert view.batches == [(0, 0, 0, "a"), (1, 1, 1, "new")]
        assert view.epochs == ((0, 0), (1, 1))
        assert view.leads == (broker == 2)


def test_an_election_has_a_reason_and_a_truncation_what_it_removed(fail_over: Recording) -> None:
    elections = [event for event in of(fail_over, events.Election) if event.partition]
    assert [(event.broker, event.epoch, event.reason) for event in elections] == [
        (1, 0, "the partition is created"),
        (2, 1, "the leader is gone"),
    ]
    (truncation,) = of(fail_over, events.Truncation)
    assert (truncation.broker, truncation.offset, truncation.removed) == (1, 1, ((1, 1, 0),))


def test_fetches_and_their_answers_are_there_and_repeated_ones_are_not(
    fail_over: Recording,
) -> None:
    fetches = of(fail_over, events.Fetch)
    assert (2, 0, 1) in [(event.broker, event.epoch, event.offset) for event in fetches]
    answers = of(fail_over, events.FetchAnswer)
    assert [event.diverging for event in answers if event.diverging] == [(0, 1)]
    assert len(fetches) + len(answers) < 40


def test_sends_and_results_are_paired(fail_over: Recording) -> None:
    sends = {event.number: event for event in of(fail_over, events.Send)}
    results = [(sends[e.number].values, e.offset) for e in of(fail_over, events.SendResult)]
    assert results == [(("a",), 0), (("old",), 1), (("new",), 1)]


def test_a_shrink_is_proposed_and_then_confirmed() -> None:
    found = run(parse("topic orders b1 b2\ncut b1 <-> b2\nuntil in-sync b1"))
    changes = [(event.members, event.is_confirmed) for event in of(found, events.InSync)]
    assert changes == [((1, 2), True), ((1,), False), ((1,), True)]


def test_a_deleted_partition_has_no_leader_and_no_in_sync_set() -> None:
    replicas = Replicas()
    for event in run(parse("topic orders b1 b2\nproduce b1 acks=all x\n\ndelete orders")).events:
        replicas.add(event)
    assert (replicas.leaders, replicas.in_sync) == ({}, {})


def test_states_of_transactions_are_there() -> None:
    steps = "topic orders b1 b2\nproducer p1 transactional.id=pay\nsend p1 x\n\ncommit p1\nwait 1s"
    found = of(run(parse(steps)), events.TransactionState)
    states = [event.state for event in found]
    assert states[0] == "Empty"
    assert states[-1] == "CompleteCommit"
    assert "Ongoing" in states


@pytest.mark.parametrize(
    "force",
    [
        {"members": 0, "copiers": 0},
        {"members": 3, "copiers": 0},
        pytest.param({"copiers": 2, "members": 0, "partitions": 2}, marks=pytest.mark.slow),
    ],
    ids=["plain", "group", "transactions"],
)
def test_a_recorded_run_of_the_simulation_has_the_same_trace_hash(force: dict[str, int]) -> None:
    options = Options(trouble_s=3.0, force=force)
    found: list[Recording] = []
    assert run_seed(7, options, found.append).trace_hash == run_seed(7, options).trace_hash
    (recording,) = found
    assert recording.source == "seed 7"
    kinds = {event.kind for event in recording.events}
    assert {"replica", "in-sync", "election", "fetch", "send", "send-result", "fault"} <= kinds
    assert ("group" in kinds) == bool(force.get("members"))
    assert ("transaction" in kinds) == bool(force.get("copiers"))
    assert read(write(recording)) == recording


def test_a_run_that_fails_is_recorded_up_to_the_violation() -> None:
    for seed in range(30):
        found: list[Recording] = []
        if isinstance(try_seed(seed, "commit-below-minimum", None, found.append), Failure):
            assert isinstance(found[0].events[-1], events.Violation)
            return
    pytest.fail("no seed caught the mutant")


@pytest.mark.slow
def test_a_failing_seed_prints_the_command_with_which_it_is_recorded_and_shown(
    tmp_path: Path,
) -> None:
    """What a user does: run it, copy the command, look at the violation."""
    failing = [sys.executable, "-m", "simulation", "--from", "0", "--seeds", "30"]
    failing += ["--mutant", "truncate-to-watermark"]
    failed = subprocess.run(failing, cwd=ROOT, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    (told,) = re.findall(r"^to see it: (.*)$", failed.stdout, re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "COLUMNS": "80"}
    commands = told.replace("python ", f"{sys.executable} ").replace(
        "; suwi ", f"; {sys.executable} -m suwi "
    )
    shown = subprocess.run(
        commands, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "\nin a browser: suwi lab serve run.jsonl --open\n" in shown.stdout
    _, _, told = shown.stdout.partition("to see it: suwi lab show run.jsonl\n")
    assert re.search(
        r"^seed \d+, truncate-to-watermark: \d+ events, here ", shown.stdout, re.MULTILINE
    )
    assert re.search(r"^ +\d+\.\d+  violation ", told, re.MULTILINE)
    assert re.search(r"^  b\d .*[│║]", told, re.MULTILINE)
    assert re.search(r"^violated at [\d.]+ s: ", told, re.MULTILINE)


def test_every_kind_of_event_is_told_in_words(fail_over: Recording) -> None:
    steps = "topic orders b1 b2\nproducer p1 transactional.id=pay\nsend p1 x\n\ncommit p1\nkill b1"
    others = [events.Loss(at_s=0, what="loss"), events.Violation(at_s=0, what="lost")]
    others += [events.GroupState(at_s=0, group="g", state="Stable", members=1)]
    told = [*fail_over.events, *run(parse(steps)).events, *others]
    assert {event.kind for event in told} == set(events.KINDS)
    assert all(event_text(event, language) for event in told for language in LANGUAGES)


def test_in_korean_an_acknowledgement_is_an_answer_and_a_missing_one_is_none() -> None:
    told, unanswered = (
        events.SendResult(at_s=0, client="p1", number=1, offset=offset, error=error)
        for offset, error in ((3, None), (None, "no answer"))
    )
    assert event_text(told, "ko") == "p1: 오프셋 3 응답(ack)을 받음 (전송 1)"
    assert event_text(unanswered, "ko") == "p1: 응답이 없다 (전송 1)"


def test_a_recording_of_the_first_version_is_read() -> None:
    replica = '{"kind":"replica","at_s":1,"broker":1,"partition":"a-0","epoch":0,"offset":3}'
    (event,) = read(['{"kind":"recording","version":1,"source":"old"}', replica]).events
    assert isinstance(event, events.ReplicaChanged)
    assert (event.offset, event.segments, event.producers) == (3, None, None)


def test_the_leader_knows_since_when_a_follower_is_behind() -> None:
    steps = "topic orders b1 b2\n\ncut b1 <-> b2\nproduce b1 acks=1 x\n\nheal\nuntil b2 hw 1"
    found = [event for event in run(parse(steps)).events if isinstance(event, events.FollowerSeen)]
    assert {(event.broker, event.follower) for event in found} == {(1, 2)}
    behind = [event for event in found if event.caught_up_s is not None and event.offset == 0]
    assert behind[-1].caught_up_s < behind[-1].at_s  # type: ignore[operator]
    assert (found[-1].offset, found[-1].caught_up_s) == (1, None)


def test_segments_and_states_of_producers_are_there() -> None:
    steps = "topic orders b1 b2 segment.ms=500\nproducer p1 transactional.id=pay\nsend p1 x\n"
    steps += "\nsend p1 y\n\ncommit p1\nwait 1s"
    replicas = Replicas()
    open_from = set()
    for event in run(parse(steps)).events:
        replicas.add(event)
        view = replicas.replicas.get(("orders-0", 1))
        open_from |= {producer[3] for producer in view.producers} if view else set()
    for broker in (1, 2):
        view = replicas.replicas["orders-0", broker]
        assert view.segments == (0, 1, 2)
        assert [producer[3] for producer in view.producers] == [-1]
    assert open_from == {0, -1}


def test_what_a_client_is_told_is_there() -> None:
    steps = "topic orders b1\nproduce b1 acks=all x\n\nconsumer c1 orders group.id=shop "
    steps += "auto.offset.reset=earliest\npoll c1\n\nread b1"
    found = of(run(parse(steps)), events.Told)
    assert [(event.client, event.what) for event in found] == [
        ("c1", 'c1 receives 0 "x"'),
        ("client", 'b1 shows 0 "x"'),
    ]


def test_a_proposal_that_is_refused_is_followed_by_the_old_set() -> None:
    """Nothing is proposed any more: what was is not left in the picture."""
    (path,) = [each for each in TRANSCRIPTS if each.stem == "10-a-restarted-follower"]
    confirmed: tuple[int, ...] = ()
    refused = []
    for event in of(run(parse(path.read_text())), events.InSync):
        assert isinstance(event, events.InSync)
        if event.is_confirmed:
            confirmed = event.members
        elif event.members == confirmed:
            refused.append(event.members)
    assert refused == [(1,)]


@pytest.mark.slow
def test_the_command_of_the_simulation_writes_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "simulation", "--seed", "1", "--trouble", "1"]
    subprocess.run([*command, "--record", str(file)], cwd=ROOT, check=True, capture_output=True)
    assert read(file.read_text().splitlines()).source == "seed 1"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1: this is not JSON"),
        (["[]"], "line 1: this is no JSON object"),
        (['{"kind":"fault"}'], "line 1: this is no recording of the lab"),
        (['{"kind":"recording","version":9}'], "the recording has version 9; this reads 1, 2, 3"),
        (['{"kind":"recording","version":1}', '{"kind":"x"}'], "line 2: there are no events of"),
        (['{"kind":"recording","version":1}', '{"kind":"fault"}'], "line 2: "),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(RecordingError) as error:
        read(lines)
    assert message in str(error.value)


def test_the_documentation_lists_every_kind_with_its_fields() -> None:
    page = (ROOT / "docs" / "lab.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    common = {"at_s", "broker", "partition", "epoch", "offset"}
    for kind, event in events.KINDS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{kind}` ")]
        names = {each.name for each in fields(event)} - common
        assert [name for name in names if f"`{name}`" not in row] == []


def test_a_line_is_an_object_with_its_kind(fail_over: Recording) -> None:
    head, *lines = (json.loads(line) for line in write(fail_over))
    assert head["version"] == events.VERSION
    assert all("kind" in line and "at_s" in line for line in lines)
