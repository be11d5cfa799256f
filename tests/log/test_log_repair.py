"""Giving up damaged records of a stopped broker: what is given up, and what stays."""

import pytest

from suwi.log import names
from suwi.log.damage import Damage
from suwi.log.log_repair import LogRepair
from suwi.model.ids import Offset
from suwi.records.record import iter_records
from tests.log.kit import Bench, batches_in
from tests.log.test_segment_check import RECORDS, SMALL, _filled, _flip

ALL = range(40 * RECORDS)


def _repair(
    bench: Bench, *, may_have_gaps: bool = False, recovery_point: Offset = Offset(0)
) -> LogRepair:
    return LogRepair(
        bench.disk,
        bench.dir,
        Offset(0),
        may_have_gaps=may_have_gaps,
        recovery_point=recovery_point,
    )


def _spans(damages: list[Damage]) -> list[tuple[int, int]]:
    return [(damage.first, damage.end) for damage in damages]


def _offsets(bench: Bench) -> list[int]:
    """The offsets of all records that a consumer gets."""
    return [
        r.offset for batch, header in batches_in(bench.log) for r in iter_records(batch, header)
    ]


def _bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.segments()]


def test_a_whole_log_has_nothing_to_repair() -> None:
    bench = _filled()
    bench.close()
    before = {name: bench.disk.read_bytes(f"{bench.dir}/{name}") for name in bench.names()}
    assert _repair(bench).find() == []
    after = {name: bench.disk.read_bytes(f"{bench.dir}/{name}") for name in bench.names()}
    assert after == before


@pytest.mark.parametrize("byte", [7, 9, 70])
def test_damaged_batches_are_given_up_and_all_others_stay(byte: int) -> None:
    bench = _filled()
    bases = _bases(bench)
    bad = [bases[0], bases[1] + 2 * RECORDS, bases[2] - RECORDS, bases[-1] + RECORDS]
    bench.close()
    for offset in bad:
        _flip(bench, offset, byte, 1)
    expected = [(offset, offset + RECORDS) for offset in bad]
    damages = _repair(bench).find()
    assert _spans(damages) == expected
    assert _spans(_repair(bench).find()) == expected, "finding changes nothing"
    _repair(bench).give_up(damages)
    assert _repair(bench).find() == []
    log = bench.open()
    assert log.damages == ()
    lost = {offset for first, end in expected for offset in range(first, end)}
    assert _offsets(bench) == [offset for offset in ALL if offset not in lost]
    assert log.end_offset == len(ALL)
    bench.append()
    bench.files.forget_dir(bench.dir)
    bench.open(clean=False)
    assert bench.log.end_offset == len(ALL) + 1, "recovery accepts the empty batches"


def test_a_missing_segment_is_given_up() -> None:
    bench = _filled()
    bases = _bases(bench)
    bench.close()
    for suffix in names.SEGMENT_FILES:
        if bench.disk.exists(bench.path(bases[1], suffix)):
            bench.disk.remove(bench.path(bases[1], suffix))
    assert _repair(bench, may_have_gaps=True).find() == []
    damages = _repair(bench).find()
    assert _spans(damages) == [(bases[1], bases[2])]
    _repair(bench).give_up(damages)
    assert bench.open().damages == ()
    assert _offsets(bench) == [offset for offset in ALL if not bases[1] <= offset < bases[2]]


def test_an_unfinished_write_at_the_end_is_no_damage() -> None:
    bench = _filled()
    bench.files.get(bench.log.active.log_path).pwrite(b"half", bench.log.active.size_bytes)
    assert bench.config == SMALL
    assert _repair(bench).find() == []


@pytest.mark.parametrize("byte", [9, 70])
def test_a_damaged_last_batch_below_the_recovery_point_is_given_up(byte: int) -> None:
    """It was synced: it is no unfinished write. The offsets after it are not used again."""
    bench = _filled()
    bench.close()
    last = len(ALL) - RECORDS
    _flip(bench, last, byte, 7)
    assert _repair(bench).find() == []
    repair = _repair(bench, recovery_point=Offset(len(ALL)))
    damages = repair.find()
    assert _spans(damages) == [(last, len(ALL))]
    repair.give_up(damages)
    assert repair.find() == []
    log = bench.open()
    assert log.end_offset == len(ALL)
    assert _offsets(bench) == list(ALL)[:last]


def test_a_damaged_batch_and_a_lost_end_of_one_segment_are_both_found() -> None:
    bench = _filled()
    bases = _bases(bench)
    bench.close()
    damaged = bases[1] + RECORDS
    _flip(bench, damaged, 70)
    lost = bench.log.segments()[1].locate(Offset(bases[2] - RECORDS))
    assert lost is not None
    file = bench.disk.open(bench.path(bases[1]))
    file.truncate(lost.position)
    file.close()
    damages = _repair(bench).find()
    expected = [(damaged, damaged + RECORDS), (bases[2] - RECORDS, bases[2])]
    assert _spans(damages) == expected
    _repair(bench).give_up(damages)
    assert _repair(bench).find() == []
    assert bench.open().damages == ()


@pytest.mark.parametrize("is_batch", [True, False])
def test_bytes_after_the_last_batch_of_a_closed_segment_are_cut_off(is_batch: bool) -> None:
    """All records are there: nothing is given up with them."""
    bench = _filled()
    bases = _bases(bench)
    bench.close()
    following = bench.disk.read_bytes(bench.path(bases[2]))
    file = bench.disk.open(bench.path(bases[1]))
    file.pwrite(following if is_batch else b"rubbish " * 20, file.size())
    file.close()
    damages = _repair(bench).find()
    assert len(damages) == 1
    _repair(bench).give_up(damages)
    assert _repair(bench).find() == []
    assert bench.open().damages == ()
    assert _offsets(bench) == list(ALL)


@pytest.mark.parametrize("index", [names.OFFSET_INDEX, names.TIME_INDEX])
def test_all_that_is_lost_is_found_at_once_also_without_an_index(index: str) -> None:
    """A damaged batch, then a segment that is missing, and an index of its neighbours too."""
    bench = _filled()
    bases = _bases(bench)
    bench.close()
    _flip(bench, bases[1] + RECORDS, 70, 1)
    for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
        bench.disk.remove(bench.path(bases[2], suffix))
    for base in (bases[1], bases[3]):
        bench.disk.remove(bench.path(base, index))
    before = bench.names()
    damages = _repair(bench).find()
    lost = (bases[1] + RECORDS, bases[1] + 2 * RECORDS), (bases[2], bases[3])
    assert _spans(damages) == list(lost)
    assert bench.names() == before, "finding changes nothing"
    _repair(bench).give_up(damages)
    assert _repair(bench).find() == []
    assert bench.open().damages == ()
    assert _offsets(bench) == [n for n in ALL if not any(a <= n < b for a, b in lost)]
