"""The check of closed segments: damage of each kind is found, and only the damaged part is lost."""

import errno
from typing import Any, cast

import pytest

from suwi.env import File, LocalDisk
from suwi.log.damage import Damage
from suwi.log.segment_check import SegmentCheck, SegmentFile
from suwi.log.sliced_work import run_steps
from suwi.model.errors import CorruptMessage, KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import batches, compute_crc
from suwi.records.record import MarkerType
from suwi.sim import SimRandom
from tests.log.kit import NOW_MS, Bench, batch_of, batches_in

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=1)
RECORDS = 3
"""In each batch."""


def _filled(config: TopicConfig = SMALL) -> Bench:
    bench = Bench(config=config)
    for number in range(40):
        bench.epoch = number // 15
        bench.append(batch_of(RECORDS, value=b"value"))
    assert len(bench.log.segments()) >= 4
    return bench


def _check(bench: Bench, number: int) -> SegmentCheck:
    segments = bench.log.segments()
    segment, following = segments[number], segments[number + 1]
    file = bench.files.pin(segment.log_path)
    check = SegmentCheck(
        SegmentFile.of(bench.log, segment, segment.size_bytes, following.base_offset, file)
    )
    run_steps(check.checking())
    bench.files.unpin(file)
    return check


def _flip(bench: Bench, offset: int, byte: int, bit: int = 0) -> None:
    """Flip a bit of the batch at an offset; `byte` counts from its start."""
    segment = bench.log.segments(Offset(offset))[0]
    found = segment.locate(Offset(offset))
    assert found is not None
    position = found.position + byte
    old = bench.disk.read_bytes(segment.log_path)[position]
    bench.sim.overwrite(segment.log_path, bytes([old ^ 1 << bit]), position)


def _readable(bench: Bench) -> list[int]:
    """The base offsets of all batches that readers get, who skip the damaged parts."""
    log, offset, found = bench.log, bench.log.start_offset, []
    while offset < log.end_offset:
        try:
            part = log.read(offset, 1 << 20, log.end_offset, whole_batch=True)
        except KafkaStorageError:
            offset = next(damage.end for damage in log.damages if damage.end > offset)
            continue
        assert part is not None
        data = part.read()
        for position, header in batches(data):
            assert compute_crc(data, position, header.size_bytes) == header.crc
            found.append(header.base_offset)
            offset = Offset(header.next_offset)
    return found


def test_a_whole_segment_has_no_damage() -> None:
    bench = _filled()
    bench.append_marker(5, 0, MarkerType.ABORT)
    for number in range(len(bench.log.segments()) - 1):
        check = _check(bench, number)
        assert check.damages == []
        assert check.found_end == bench.log.segments()[number + 1].base_offset
        assert check.checked_bytes == bench.log.segments()[number].size_bytes


def test_a_compacted_segment_with_gaps_has_no_damage() -> None:
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 1, 7, 30, 31, 90):
        batch = batch_of(base_offset=base, epoch=base // 30)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(5), NOW_MS)
    bench.log.roll(NOW_MS)
    assert _check(bench, 0).damages == []


@pytest.mark.parametrize("victim", [0, 3, 6, 9])
def test_damage_of_any_bit_takes_exactly_its_batch(victim: int) -> None:
    """Only a flipped leader epoch that its neighbours do not contradict is not found."""
    random = SimRandom("flips")
    probe = _filled()
    size_bytes = len(batch_of(RECORDS, value=b"value"))
    bases = [segment.base_offset for segment in probe.log.segments()]
    offset = bases[1] + victim
    for byte in range(size_bytes):
        bench = _filled()
        _flip(bench, offset, byte, random.below(8))
        damages = _check(bench, 1).damages
        if 12 <= byte < 16 and not damages:
            continue
        assert [(d.first, d.end) for d in damages] == [(offset, offset + RECORDS)], byte
        bench.log.add_damage(damages[0])
        expected = [base for base in range(0, 120, RECORDS) if base != offset]
        assert _readable(bench) == expected, byte


def test_without_an_index_a_damaged_length_takes_the_rest_of_the_segment() -> None:
    bench = _filled(TopicConfig(segment_bytes=1024, index_interval_bytes=1 << 20))
    bases = [segment.base_offset for segment in bench.log.segments()]
    _flip(bench, bases[1] + 2 * RECORDS, 9, 7)
    [damage] = _check(bench, 1).damages
    assert (damage.first, damage.end) == (bases[1] + 2 * RECORDS, bases[2])
    bench.log.add_damage(damage)
    skipped = range(damage.first, damage.end)
    assert _readable(bench) == [base for base in range(0, 120, RECORDS) if base not in skipped]


def test_several_damaged_batches_of_one_segment_are_all_found() -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    for number in (1, 2, 4):
        _flip(bench, bases[1] + number * RECORDS, 70)
    damages = _check(bench, 1).damages
    first = bases[1] + RECORDS
    spans = [(first, first + 2 * RECORDS), (first + 3 * RECORDS, first + 4 * RECORDS)]
    assert [(d.first, d.end) for d in damages] == spans
    for damage in damages:
        bench.log.add_damage(damage)
    damaged = {offset for first, end in spans for offset in range(first, end)}
    assert _readable(bench) == [base for base in range(0, 120, RECORDS) if base not in damaged]


def test_a_part_that_cannot_be_read_is_damaged() -> None:
    bench = _filled()
    segment = bench.log.segments()[1]
    bench.sim.faults.fail("read", errno.EIO, path=segment.log_path, times=None)
    [damage] = _check(bench, 1).damages
    assert (damage.first, damage.end) == (
        segment.base_offset,
        bench.log.segments()[2].base_offset,
    )


def test_a_reader_of_a_range_stops_before_the_damage_at_every_limit() -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bad = bases[1] + 2 * RECORDS
    _flip(bench, bad, 70)
    for damage in _check(bench, 1).damages:
        bench.log.add_damage(damage)
    log = bench.log
    for limit in range(bases[1] + 1, bases[2] + 1):
        part = log.read(Offset(bases[1]), 1 << 20, Offset(limit), whole_batch=True)
        if limit < bases[1] + RECORDS:
            assert part is None
        else:
            assert part is not None
            whole = (min(limit, bad) - bases[1]) // RECORDS
            assert part.size_bytes == whole * len(batch_of(RECORDS, value=b"value"))


@pytest.mark.parametrize("at", range(3))
def test_a_log_can_be_truncated_within_a_damaged_batch(at: int) -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bad = bases[1] + 2 * RECORDS
    _flip(bench, bad, 9, 7)
    for damage in _check(bench, 1).damages:
        bench.log.add_damage(damage)
    bench.truncate_to(Offset(bad + at))
    assert bench.log.end_offset == bad
    assert bench.log.damages == ()
    bench.append(batch_of(RECORDS, value=b"value"))
    assert len(batches_in(bench.log)) == bad // RECORDS + 1


def test_known_damage_is_reported_once() -> None:
    bench = _filled()
    damage = Damage(Offset(3), Offset(6), Offset(0), bench.path(0), "wrong", 80, 160)
    for _ in range(2):
        bench.log.add_damage(damage)
    assert bench.log.damages == (damage,)
    assert len(list(bench.state.problems)) == 1


def test_checked_pages_can_be_dropped_from_the_cache(tmp_path) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(disk=LocalDisk(), dir=f"{tmp_path}/orders-0", config=SMALL)
    bench.append_many(100)
    assert _check(bench, 0).damages == []
    file = bench.files.get(bench.path(0))
    file.drop_cached(0, file.size())
    assert _check(bench, 0).damages == []


# -- damaged headers ------------------------------------------------------------------------------

_SPARSE = TopicConfig(segment_bytes=1024, index_interval_bytes=1 << 20)
_DENSE_LAST = TopicConfig(segment_bytes=1024, index_interval_bytes=300)


def _with_unreadable_header(config: TopicConfig, number: int, *, is_known: bool) -> Bench:
    """Batch `number` of the second segment does not look like a batch."""
    bench = _filled(config)
    base = bench.log.segments()[1].base_offset
    damaged = base + number * RECORDS
    found = bench.log.segments()[1].locate(Offset(damaged))
    assert found is not None
    _flip(bench, damaged, 16, 3)  # The magic byte.
    if is_known:
        damage = Damage(
            Offset(damaged),
            Offset(damaged + RECORDS),
            base,
            bench.log.segments()[1].log_path,
            "test",
            found.position,
            found.position + found.size_bytes,
        )
        bench.log.add_damage(damage)
    return bench


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("config", [SMALL, _SPARSE, _DENSE_LAST])
@pytest.mark.parametrize("beyond", [1, 2, 3])
def test_a_truncation_after_an_unreadable_header_leaves_the_right_end_offset(
    config: TopicConfig, beyond: int, is_known: bool
) -> None:
    bench = _with_unreadable_header(config, 2, is_known=is_known)
    segments, before = bench.log.segments(), bench.log.end_offset
    end = Offset(segments[1].base_offset + (2 + beyond) * RECORDS)
    try:
        bench.truncate_to(end)
    except CorruptMessage:
        assert not is_known
        assert (bench.log.segments(), bench.log.end_offset) == (segments, before)
        assert bench.log.state.suspects, "it is checked, then the truncation can be repeated"
        return
    assert bench.log.end_offset == end
    bench.append(batch_of(RECORDS, value=b"after"))
    assert bench.log.end_offset == end + RECORDS
    last = bench.log.read(end, 1 << 20, bench.log.end_offset, whole_batch=True)
    assert last is not None
    assert b"after" in last.read()


def test_a_look_up_by_time_passes_over_a_damaged_header() -> None:
    bench = Bench(config=_SPARSE)
    for number in range(40):
        bench.append(batch_of(RECORDS, timestamps=[NOW_MS + number] * RECORDS, value=b"value"))
    base = bench.log.segments()[1].base_offset
    damaged = Offset(base + 2 * RECORDS)
    found = bench.log.segments()[1].locate(damaged)
    assert found is not None
    _flip(bench, damaged, 16, 3)
    end_position = found.position + found.size_bytes
    bench.log.add_damage(
        Damage(
            damaged,
            Offset(damaged + RECORDS),
            base,
            bench.log.segments()[1].log_path,
            "test",
            found.position,
            end_position,
        )
    )
    for number in range(40):
        offset = number * RECORDS
        batch = bench.log.batch_at_time(NOW_MS + number)
        assert batch is not None
        expected = offset if offset != damaged else offset + RECORDS
        assert next(batches(batch.read()))[1].base_offset == expected


def test_a_look_up_by_time_that_meets_unknown_damage_has_it_checked() -> None:
    bench = Bench(config=_SPARSE)
    for number in range(40):
        bench.append(batch_of(RECORDS, timestamps=[NOW_MS + number] * RECORDS, value=b"value"))
    segment = bench.log.segments()[1]
    damaged = Offset(segment.base_offset + 2 * RECORDS)
    wanted = NOW_MS + damaged // RECORDS + 1
    _flip(bench, damaged, 16, 3)
    with pytest.raises(CorruptMessage):
        bench.log.batch_at_time(wanted)
    assert bench.state.suspects == {bench.log.partition: damaged}
    for damage in _check(bench, 1).damages:
        bench.log.add_damage(damage)
    found = bench.log.batch_at_time(wanted)
    assert found is not None
    assert next(batches(found.read()))[1].base_offset == damaged + RECORDS


def test_a_larger_damage_takes_the_place_of_those_that_it_overlaps() -> None:
    bench = _filled()
    segment = bench.log.segments()[1]

    def damage(first: int, end: int) -> Damage:
        positions = []
        for number in (first, end):
            found = segment.locate(Offset(segment.base_offset + number * RECORDS))
            assert found is not None
            positions.append(found.position)
        base = segment.base_offset
        span = Offset(base + first * RECORDS), Offset(base + end * RECORDS)
        return Damage(*span, base, segment.log_path, "test", *positions)

    bench.log.add_damage(damage(2, 3))
    bench.log.add_damage(damage(4, 5))
    bench.log.add_damage(damage(1, 4))
    assert bench.log.damages == (damage(1, 4), damage(4, 5))
    bench.log.add_damage(damage(2, 3))
    assert bench.log.damages == (damage(1, 4), damage(4, 5)), "known"
    bench.log.add_damage(damage(3, 6))
    assert bench.log.damages == (damage(1, 6),)
    places = [problem.place for problem in bench.state.problems]
    assert places == [f"orders-0 {damage(1, 6)}"]


def test_a_damaged_length_in_the_last_segment_takes_the_batches_up_to_an_index_entry() -> None:
    """The newest entries of its index are only in memory."""
    bench = _filled()
    bad = bench.log.active.base_offset + 2 * RECORDS
    _flip(bench, bad, 9, 7)
    segment = bench.log.active
    file = bench.files.pin(segment.log_path)
    end = bench.log.end_offset
    check = SegmentCheck(SegmentFile.of(bench.log, segment, segment.size_bytes, end, file))
    run_steps(check.checking())
    bench.files.unpin(file)
    assert [(d.first, d.end) for d in check.damages] == [(bad, bad + RECORDS)]


def test_the_end_of_a_long_damaged_part_is_found_without_much_reading() -> None:
    """An index has an entry for every 4 KiB of it."""
    bench = Bench(config=TopicConfig(index_interval_bytes=1))
    for _ in range(600):
        bench.append(batch_of(value=b"value" * 200))
    segment = bench.log.active
    size_bytes = segment.size_bytes
    bench.log.roll(NOW_MS)
    bench.sim.overwrite(segment.log_path, b"\0" * (size_bytes // 2), size_bytes // 4)
    file = _CountingFile(bench.files.pin(segment.log_path))
    check = SegmentCheck(
        SegmentFile.of(bench.log, segment, size_bytes, Offset(600), cast("File", file))
    )
    run_steps(check.checking())
    assert [(d.first, d.end) for d in check.damages] == [(150, 450)]
    assert file.read_bytes < 2 * size_bytes


class _CountingFile:
    def __init__(self, file: File) -> None:
        self._file = file
        self.read_bytes = 0

    def pread(self, size_bytes: int, position: int) -> bytes:
        self.read_bytes += size_bytes
        return self._file.pread(size_bytes, position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
