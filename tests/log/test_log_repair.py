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


def _repair(bench: Bench, **options: bool) -> LogRepair:
    given = {"may_have_gaps": False, **options}
    return LogRepair(bench.disk, bench.dir, Offset(0), **given)


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
