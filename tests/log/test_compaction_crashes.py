"""A crash at every single step of a cleaning: nothing is lost, nothing reappears."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest

from suwi.log import names
from suwi.log.cleaned_segment import complete_swaps
from suwi.model.ids import Offset
from suwi.records.record import MarkerType
from suwi.sim import Revoked
from tests.log.compaction_kit import COMPACT, Seen, compact, keyed, producers_of, put, seen_in
from tests.log.kit import Bench, apply_retention, seeded

Die = Callable[[Bench], object]
PRODUCER, TRANSACTIONAL = 7, 8


def crash(bench: Bench) -> None:
    bench.crash()


def lose_power(bench: Bench) -> None:
    bench.lose_power()


def lose_power_without_tears(bench: Bench) -> None:
    bench.lose_power(tear=False)


def a_log_to_clean(seed: int = 0) -> Bench:
    """Several groups of segments, partly compacted before, with transactions and tombstones."""
    bench = seeded(seed, config=COMPACT)
    for number in range(16):
        value = "x" * (number * 37 % 150)
        put(bench, (f"k{number % 5}", value), (f"only{number % 9}", "v"))
        sequence = 2 * number
        bench.append(keyed([(b"i", b"1"), (b"j", None)], producer=(PRODUCER, 0, sequence)))
        if number % 4 == 1:
            batch = keyed(
                [(b"k1", b"aborted")], producer=(TRANSACTIONAL, 0, number // 4), transactional=True
            )
            bench.append(batch)
            bench.append_marker(TRANSACTIONAL, 0, MarkerType.ABORT)
        if number % 3 == 2:
            bench.log.roll(bench.now_ms)
        if number == 9:
            bench.sync()
            compact(bench)
            bench.now_ms += 2000
    bench.log.roll(bench.now_ms)
    put(bench, ("active", "1"))
    bench.sync()
    return bench


def survivors() -> tuple[list[Seen], list[Seen]]:
    """The records before the cleaning, and after."""
    bench = a_log_to_clean()
    before = seen_in(bench.log)
    done = compact(bench)
    assert done is not None
    assert done.first_dirty > 0
    after = seen_in(bench.log)
    assert 0 < len(after) < len(before)
    return before, after


BEFORE, AFTER = survivors()


def steps_of_a_cleaning() -> int:
    """How many calls that change the disk it takes."""
    bench, many = a_log_to_clean(), 10_000
    bench.sim.faults.crash_after(many)
    compact(bench, remove=False)
    assert bench.sim.faults._calls_left is not None
    return many - bench.sim.faults._calls_left


STEPS = steps_of_a_cleaning()


def crash_while_cleaning(
    seed: int, step: int
) -> tuple[Bench, list[tuple[int, int, int, int]], int]:
    bench = a_log_to_clean(seed)
    producers, cleaned_to = producers_of(bench.log), bench.log.cleaned_to
    bench.sim.faults.crash_after(step)
    with pytest.raises(Revoked):
        compact(bench, remove=False)
    return bench, producers, cleaned_to


def check_nothing_is_lost(bench: Bench) -> None:
    found = seen_in(bench.log)
    assert set(AFTER) <= set(found), "a record was lost"
    assert set(found) <= set(BEFORE), "an unknown record appeared"
    assert found == sorted(found)
    segments = bench.log.segments()
    for segment, following in pairwise(segments):
        assert segment.next_offset == following.base_offset
    known = (*names.SEGMENT_FILES, names.SNAPSHOT, names.LEADER_EPOCHS)
    assert all(name.endswith(known) for name in bench.names()), bench.names()


@pytest.mark.parametrize(
    "die", [crash, lose_power, pytest.param(lose_power_without_tears, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("step", range(STEPS))
def test_after_a_crash_at_any_step_the_log_has_every_survivor(step: int, die: Die) -> None:
    bench, producers, cleaned_to = crash_while_cleaning(step, step)
    die(bench)
    check_nothing_is_lost(bench)
    assert producers_of(bench.log) == producers
    bench.log.cleaned_to = Offset(cleaned_to)  # The checkpoint is written after the cleaning.
    compact(bench)
    assert seen_in(bench.log) == AFTER
    assert producers_of(bench.log) == producers
    sequence = 2 * 16
    assert bench.append(keyed([(b"i", b"1"), (b"j", None)], producer=(PRODUCER, 0, sequence - 2)))
    assert not bench.append(keyed([(b"i", b"2")], producer=(PRODUCER, 0, sequence))).is_duplicate


@pytest.mark.parametrize("die", [crash, pytest.param(lose_power, marks=pytest.mark.slow)])
def test_a_start_that_crashes_while_completing_a_swap_is_completed_by_the_next_start(
    die: Die,
) -> None:
    interrupted = 0
    for step in range(STEPS):
        dead, producers, _ = crash_while_cleaning(step, step)
        if not any(name.endswith(names.SWAP) for name in names_left(dead)):
            continue
        for calls in range(1000):
            bench = deepcopy(dead)
            die_without_start(bench, die)
            bench.sim.faults.crash_after(calls)
            try:
                complete_swaps(bench.disk, bench.dir)
            except Revoked:
                interrupted += 1
                die_without_start(bench, die)
                bench.open(clean=False, recovery_point=dead.log.recovery_point)
                check_nothing_is_lost(bench)
                assert producers_of(bench.log) == producers
            else:
                break
    assert interrupted > 50


def die_without_start(bench: Bench, die: Die) -> None:
    bench.disk = bench.sim.crash() if die is crash else bench.sim.power_loss()


def names_left(bench: Bench) -> list[str]:
    """The files that the killed process left on the disk."""
    data = bench.sim.drive.volume.root.entries["data"]
    return sorted(data.entries["orders-0"].entries)  # type: ignore[union-attr]


def test_the_crashed_cleanings_include_one_of_several_groups() -> None:
    bench = a_log_to_clean()
    planned_segments = len(bench.log.segments())
    compact(bench)
    assert 2 < len(bench.log.segments()) < planned_segments
    assert STEPS > 40


# -- leftovers of other processes ----------------------------------------------------------------


def swapped_files(bench: Bench) -> dict[str, bytes]:
    """The files of the first compacted segment, by suffix."""
    cleaned = deepcopy(bench)
    compact(cleaned)
    return {
        suffix: cleaned.disk.read_bytes(cleaned.path(0, suffix))
        for suffix in names.SEGMENT_FILES
        if cleaned.disk.exists(cleaned.path(0, suffix))
    }


def leave(bench: Bench, files: dict[str, bytes], extensions: dict[str, str]) -> None:
    for suffix, data in files.items():
        bench.disk.write_atomically(bench.path(0, suffix) + extensions[suffix], data)


def test_an_incomplete_swap_is_dropped() -> None:
    bench = a_log_to_clean()
    before = seen_in(bench.log)
    extensions = dict.fromkeys(names.SEGMENT_FILES, names.CLEANED) | {names.LOG: names.SWAP}
    leave(bench, swapped_files(bench), extensions)
    bench.crash()
    assert seen_in(bench.log) == before
    check_nothing_is_lost(bench)


def test_a_complete_swap_replaces_all_segments_it_was_made_from() -> None:
    bench = a_log_to_clean()
    files = swapped_files(bench)
    segments = len(bench.log.segments())
    leave(bench, files, dict.fromkeys(names.SEGMENT_FILES, names.SWAP))
    bench.crash()
    assert bench.disk.read_bytes(bench.path(0)) == files[names.LOG]
    assert len(bench.log.segments()) < segments
    check_nothing_is_lost(bench)


# -- retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("die", [crash, lose_power])
def test_after_a_crash_at_any_step_of_retention_the_remaining_segments_are_intact(die: Die) -> None:
    config = replace(COMPACT, cleanup_policy=("compact", "delete"), retention_bytes=1500)
    for step in range(1000):
        bench = a_log_to_clean(step)
        bench.log.config = bench.config = config
        before, producers = seen_in(bench.log), producers_of(bench.log)
        bench.sim.faults.crash_after(step)
        try:
            deleted = apply_retention(bench.log, bench.log.end_offset, bench.now_ms)
        except Revoked:
            die(bench)
        else:
            bench.sim.faults.clear()
            assert len(deleted) > 6
            die(bench)
            assert seen_in(bench.log)[0].offset > 0
            break
        found = seen_in(bench.log)
        assert found == before[len(before) - len(found) :]
        assert len(found) > 5
        assert bench.append(keyed([(b"i", b"1"), (b"j", None)], producer=(PRODUCER, 0, 30)))
        assert producers_of(bench.log) == producers
    assert step > 6
