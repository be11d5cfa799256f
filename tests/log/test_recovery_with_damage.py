"""A recovery that finds damage: only the damaged batches are refused, after more restarts too."""

import contextlib

import pytest

from suwi.log import names
from suwi.log.damage import Damage
from suwi.log.file_cache import FileCache
from suwi.log.recovery import OpenOptions, opening_log
from suwi.log.sliced_work import TURN
from suwi.model.errors import CorruptMessage, KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.record import MarkerType
from suwi.sim import SimRandom
from suwi.sim.incarnation import Revoked
from tests.log.kit import NOW_MS, PARTITION, Bench, batch_of, batches_in, seeded
from tests.log.test_log_repair import _repair, _spans
from tests.log.test_segment_check import RECORDS, SMALL, _check, _filled, _flip, _readable

SPARSE = TopicConfig(segment_bytes=1024, index_interval_bytes=1 << 20)
ALL = list(range(0, 120, RECORDS))


def _bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.segments()]


def _overwrite(bench: Bench, offset: int, at: int, data: bytes) -> None:
    """Overwrite bytes of the batch at an offset, from its byte `at` on."""
    segment = bench.log.segments(Offset(offset))[0]
    found = segment.locate(Offset(offset))
    assert found is not None
    bench.sim.overwrite(segment.log_path, data, found.position + at)


@pytest.mark.parametrize("victim", [0, 3, 6, 9])
def test_damage_of_any_bit_takes_exactly_its_batch(victim: int) -> None:
    random = SimRandom("recovered")
    probe = _filled()
    offset = _bases(probe)[1] + victim
    others = [base for base in ALL if base != offset]
    for byte in range(len(batch_of(RECORDS, value=b"value"))):
        bench = _filled()
        _flip(bench, offset, byte, random.below(8))
        bench.crash()
        assert _bases(bench) == _bases(probe), byte
        if 12 <= byte < 16 and not bench.log.damages:
            continue  # A leader epoch that its neighbours do not contradict.
        assert _spans(list(bench.log.damages)) == [(offset, offset + RECORDS)], byte
        assert _readable(bench) == others, byte
        assert _spans(_repair(bench).find()) == [(offset, offset + RECORDS)], byte
        if byte % 7 == 0:
            bench.crash()
            assert _readable(bench) == others, byte


@pytest.mark.parametrize("config", [SMALL, SPARSE])
def test_after_a_clean_restart_the_check_finds_the_same_damage_again(config: TopicConfig) -> None:
    """Nothing is stored: readers who meet a header that cannot be read have the segment checked."""
    bench = _filled(config)
    bad = _bases(bench)[1] + RECORDS
    _flip(bench, bad, 16, 3)  # The magic byte.
    bench.crash()
    assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)]
    bench.reopen()
    with pytest.raises(CorruptMessage):
        bench.log.read(Offset(bad), 1, bench.log.end_offset, whole_batch=True)
    assert bench.state.suspects
    [damage] = _check(bench, 1).damages
    assert (damage.first, damage.end) == (bad, bad + RECORDS)
    bench.log.add_damage(damage)
    assert _readable(bench) == [base for base in ALL if base != bad]


def test_a_damaged_length_takes_the_batches_up_to_the_next_index_entry() -> None:
    bench = _filled(TopicConfig(segment_bytes=1024, index_interval_bytes=300))
    base = _bases(bench)[1]
    index = bench.log.segments()[1].offset_index
    indexed = [index.entry(number) for number in range(len(index))]
    after = next(last for last, _ in indexed if last > base + 2 * RECORDS)
    _flip(bench, base + RECORDS, 9, 7)
    bench.crash()
    first_readable = after - RECORDS + 1
    assert _spans(list(bench.log.damages)) == [(base + RECORDS, first_readable)]
    skipped = range(base + RECORDS, first_readable)
    assert _readable(bench) == [each for each in ALL if each not in skipped]
    bench.crash()
    assert _spans(list(bench.log.damages)) == [(base + RECORDS, first_readable)], (
        "the index has the entry still"
    )


def _false_batch(base_offset: int) -> bytes:
    return bytes(batch_of(RECORDS, value=b"false", base_offset=base_offset, epoch=0))


@pytest.mark.parametrize("claimed", range(-3, 10))
@pytest.mark.parametrize("config", [SMALL, SPARSE])
def test_record_bytes_that_look_like_a_batch_are_never_served_as_one(
    config: TopicConfig, claimed: int
) -> None:
    """A producer knows its next offsets. The damaged length leads to the bytes that it wrote."""
    bench = Bench(config=config)
    for _ in range(4):
        bench.append(batch_of(RECORDS, value=b"value"))
    base = bench.log.end_offset
    false = _false_batch(base + claimed)
    batch = batch_of(1, value=false)
    at = bytes(batch).index(false)
    bench.append(batch)
    for _ in range(40):
        bench.append(batch_of(RECORDS, value=b"value"))
    assert len(bench.log.segments()) > 1
    _overwrite(bench, base, 8, (at - 12).to_bytes(4, "big"))
    bench.crash()
    for batch_bytes, _ in _batches_served(bench):
        assert b"false" not in batch_bytes


def _batches_served(bench: Bench) -> list[tuple[bytes, int]]:
    log, offset, found = bench.log, bench.log.start_offset, []
    while offset < log.end_offset:
        try:
            part = log.read(offset, 1, log.end_offset, whole_batch=True)
        except KafkaStorageError:
            offset = next(damage.end for damage in log.damages if damage.end > offset)
            continue
        assert part is not None
        data = part.read()
        header = read_header(data)
        found.append((data, header.base_offset))
        offset = Offset(header.next_offset)
    return found


@pytest.mark.parametrize("bit", range(0, 40, 3))
def test_a_wrong_base_offset_of_the_last_batch_of_a_segment_drops_no_later_segment(
    bit: int,
) -> None:
    """The base offset is outside the checksum: it is the next segment that contradicts it."""
    bench = _filled()
    bases = _bases(bench)
    last = bases[2] - RECORDS
    _flip(bench, last, 7 - bit // 8, bit % 8)
    bench.crash()
    assert _bases(bench) == bases
    assert bench.log.end_offset == 120
    assert _readable(bench) == [base for base in ALL if base != last]


def _with_transactions(outcomes: tuple[MarkerType, MarkerType], damaged: str) -> Bench:
    """Two transactions of a producer in a closed segment; what is named is damaged."""
    bench = Bench(config=TopicConfig(segment_bytes=2048, index_interval_bytes=1))
    places = {}
    for name, outcome, sequence in (("first", outcomes[0], 0), ("second", outcomes[1], 1)):
        batch = batch_of(producer=(7, 0, sequence), transactional=True)
        places[f"{name} record"] = bench.append(batch).base_offset
        bench.append()
        places[f"{name} marker"] = bench.append_marker(7, 0, outcome).base_offset
        bench.append()
    while len(bench.log.segments()) == 1:
        bench.append()
    _flip(bench, places[damaged], HEADER_BYTES + 3)
    return bench


@pytest.mark.parametrize("damaged", ["first record", "first marker", "second record"])
@pytest.mark.parametrize("loses_index", [False, True])
@pytest.mark.parametrize(
    ("outcomes", "aborted"),
    [
        ((MarkerType.ABORT, MarkerType.COMMIT), [(0, 2)]),
        ((MarkerType.COMMIT, MarkerType.ABORT), [(4, 6)]),
        ((MarkerType.ABORT, MarkerType.ABORT), [(0, 2), (4, 6)]),
        ((MarkerType.COMMIT, MarkerType.COMMIT), []),
    ],
)
def test_aborted_transactions_around_damage_stay_aborted_and_committed_ones_committed(
    outcomes: tuple[MarkerType, MarkerType],
    aborted: list[tuple[int, int]],
    loses_index: bool,
    damaged: str,
) -> None:
    bench = _with_transactions(outcomes, damaged)
    if loses_index and (damaged != "second record" or not aborted):
        return  # What nothing says cannot be known.
    if loses_index:
        bench.disk.write_atomically(bench.path(0, names.TXN_INDEX), b"damaged", sync=True)
    bench.crash()
    found = bench.log.aborted_between(Offset(0), bench.log.end_offset)
    spans = [(each.first_offset, each.last_offset) for each in found]
    if loses_index:
        assert spans == [each for each in aborted if each[1] == 2]
    else:
        assert spans == aborted
    end = bench.log.end_offset
    assert bench.log.producers.last_stable_offset(Offset(0), end) == end


def test_a_look_up_of_a_damaged_header_leaves_the_index_entries_behind_it() -> None:
    """Without them nothing tells where the batches after it begin, and all would be refused."""
    bench = _filled()
    base = _bases(bench)[1]
    bench.reopen()
    _overwrite(bench, base + 3 * RECORDS, 8, b"\xff" * 9)  # Its length, up to the magic byte.
    for offset in (base + 3 * RECORDS, base + 4 * RECORDS):  # The entry before the second is its.
        with pytest.raises(CorruptMessage):
            bench.log.read(Offset(offset), 1, bench.log.end_offset, whole_batch=True)
    assert bench.log.segments()[1].max_timestamp == NOW_MS
    after = Offset(base + 5 * RECORDS)
    found = bench.log.read(after, 1, bench.log.end_offset, whole_batch=True)
    assert found is not None
    assert read_header(found.read()).base_offset == after
    assert _spans(_check(bench, 1).damages) == [(base + 3 * RECORDS, base + 4 * RECORDS)]


def test_damage_below_a_moved_start_is_no_problem_after_a_crash() -> None:
    bench = _filled()
    base = _bases(bench)[1]
    _flip(bench, base + RECORDS, 70)
    bench.log.advance_start(Offset(base + 4 * RECORDS))
    bench.crash()
    assert bench.log.damages == ()
    assert list(bench.state.problems) == []
    assert [header.base_offset for _, header in batches_in(bench.log)] == [
        each for each in ALL if each >= base + 4 * RECORDS
    ]


def test_a_log_is_truncated_behind_before_and_within_damage_that_a_recovery_found() -> None:
    for at in range(-4, 5):
        bench = _filled()
        bad = _bases(bench)[1] + 3 * RECORDS
        _flip(bench, bad, 16, 3)
        bench.crash()
        bench.truncate_to(Offset(bad + at))
        within = range(bad, bad + RECORDS)
        expected = bad + at if (bad + at) % RECORDS == 0 else (bad + at) // RECORDS * RECORDS
        assert bench.log.end_offset == expected
        assert [damage.first for damage in bench.log.damages] == (
            [bad] if expected >= within.stop else []
        )
        bench.append(batch_of(RECORDS))
        assert bench.log.end_offset == expected + RECORDS
        bench.crash()
        assert bench.log.end_offset == expected + RECORDS


def test_a_producers_sequences_behind_the_damage_are_known_after_a_truncation() -> None:
    bench = Bench(config=SMALL)
    for number in range(30):
        bench.append(batch_of(producer=(7, 0, number)))
    base = _bases(bench)[-1]
    _flip(bench, base + 1, 16, 3)
    bench.crash()
    bench.truncate_to(Offset(bench.log.end_offset - 1))
    producer = bench.log.producers.get(7)  # type: ignore[arg-type]
    assert producer is not None
    assert producer.last_sequence == bench.log.end_offset - 1


def test_a_damaged_end_of_a_segment_goes_with_a_truncation_to_its_start() -> None:
    """Left in the file, it would hide what is appended there from the next recovery."""
    for at in (0, 1, 3):
        bench = _filled()
        bad = _bases(bench)[2] - RECORDS
        _flip(bench, bad, 70)
        bench.crash()
        assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)]
        bench.truncate_to(Offset(bad + at))
        bench.log.config = TopicConfig(index_interval_bytes=1)
        end = bad + at // RECORDS * RECORDS
        assert bench.log.end_offset == end
        bench.append(batch_of(RECORDS, value=b"after"))
        bench.crash()
        assert bench.log.end_offset == end + RECORDS
        kept = [each for each in ALL if each <= end and (each != bad or end == bad)]
        assert _readable(bench) == kept


def test_what_is_appended_behind_damage_at_the_end_survives_a_kill() -> None:
    """The length of the damaged batch leads nowhere, and index entries are still in memory."""
    bench = _filled()
    bad = _bases(bench)[1] + 3 * RECORDS
    _overwrite(bench, bad, 4, b"\0" * 60)
    bench.crash()
    assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)]
    end = bad + RECORDS
    bench.truncate_to(Offset(end))
    bench.append(batch_of(RECORDS))
    bench.crash()
    assert bench.log.end_offset == end + RECORDS
    assert _readable(bench) == [each for each in range(0, end + 1, RECORDS) if each != bad]


def test_a_second_kill_finds_what_is_behind_damage_in_the_last_segment_again() -> None:
    bench = _filled()
    bad = _bases(bench)[-1] + RECORDS
    bench.reopen()
    assert len(bench.log.active.offset_index) > 1, "in the file since the shutdown"
    _overwrite(bench, bad, 4, b"\0" * 60)
    for _ in range(3):
        bench.crash()
        assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)]
        assert _readable(bench) == [base for base in ALL if base != bad]


@pytest.mark.parametrize("missing", [None, names.TIME_INDEX])
def test_a_kill_after_a_look_up_of_damage_leaves_the_index_entries_behind_it(
    missing: str | None,
) -> None:
    bench = _filled()
    base = _bases(bench)[1]
    bad = base + 3 * RECORDS
    bench.reopen()
    _overwrite(bench, bad, 8, b"\xff" * 9)
    if missing is not None:
        bench.disk.remove(bench.path(base, missing))
    else:
        with pytest.raises(CorruptMessage):
            bench.log.read(Offset(bad), 1, bench.log.end_offset, whole_batch=True)
    bench.crash()
    assert _spans(_check(bench, 1).damages) == [(bad, bad + RECORDS)]


@pytest.mark.parametrize("byte", [0, 1, 3])
def test_a_base_offset_far_outside_its_segment_ends_the_rebuilding_of_an_index(byte: int) -> None:
    """Offsets in an index have 31 bits."""
    bench = _filled()
    last = _bases(bench)[2] - RECORDS
    bench.reopen()
    _flip(bench, last, byte, 7)
    bench.disk.remove(bench.path(_bases(bench)[1], names.TIME_INDEX))
    bench.crash()
    assert bench.log.end_offset == 120
    bench.log.add_damage(_check(bench, 1).damages[0])
    assert _readable(bench) == [base for base in ALL if base != last]


def test_a_wrong_epoch_before_the_recovery_point_drops_nothing_behind_it() -> None:
    """The leader epoch is outside the checksum, and what was synced is not read again."""
    bench = _filled()
    bench.append(batch_of(RECORDS))
    bench.sync()
    end = bench.log.end_offset
    _flip(bench, _bases(bench)[-1] - RECORDS, 13, 3)
    for number in range(1, 3):
        bench.append(batch_of(RECORDS))
        bench.crash()
        assert bench.log.end_offset == end + number * RECORDS
        assert not bench.state.lost_records


def test_index_entries_beyond_the_end_of_a_cut_segment_do_not_stop_the_recovery() -> None:
    bench = _filled(TopicConfig(segment_bytes=1024, index_interval_bytes=300))
    base, end = _bases(bench)[1:3]
    entry = bench.log.segments()[1].offset_index.last_entry()
    bad = entry[0] - 4 * RECORDS + 1
    _flip(bench, bad, 70)
    bench.disk.open(bench.path(base)).truncate(entry[1] - 20)
    bench.crash()
    refused = range(bad, end)
    assert _readable(bench) == [each for each in ALL if each not in refused]


def test_batches_of_another_segment_in_a_closed_one_drop_no_later_segment() -> None:
    bench = _filled()
    bases = _bases(bench)
    pieces = [bench.disk.read_bytes(bench.path(base)) for base in bases]
    bench.sim.overwrite(bench.path(bases[1]), pieces[2], 0)
    bench.crash()
    assert _bases(bench) == bases
    assert _spans(list(bench.log.damages)) == [(bases[1], bases[2])]
    assert _readable(bench) == [base for base in ALL if not bases[1] <= base < bases[2]]


def test_a_wrong_base_offset_before_a_damaged_batch_is_refused_with_it() -> None:
    """The next batch would contradict it."""
    bench = _filled()
    base = _bases(bench)[1]
    _flip(bench, base + RECORDS, 70)
    _flip(bench, base, 4)
    bench.crash()
    assert _spans(list(bench.log.damages)) == [(base, base + 2 * RECORDS)]
    assert _readable(bench) == [each for each in ALL if each not in (base, base + RECORDS)]


@pytest.mark.parametrize("offset", [0, 2**40])
def test_a_wrong_base_offset_at_the_end_stops_no_start_after_a_clean_shutdown(offset: int) -> None:
    bench = _filled()
    last = bench.log.end_offset - RECORDS
    bench.close()
    _overwrite(bench, last, 0, offset.to_bytes(8, "big"))
    bench.open()
    assert bench.log.end_offset == last
    assert _readable(bench) == [base for base in ALL if base != last]


def test_a_segment_that_becomes_the_last_one_keeps_the_index_entries_behind_its_damage() -> None:
    bench = _filled()
    bases = _bases(bench)
    bench.sync()
    bad = bases[2] + RECORDS
    recovery_point = bad + 4 * RECORDS
    _overwrite(bench, bad, 4, b"\0" * 60)
    file = bench.disk.open(bench.path(bases[2]))
    file.truncate(file.size() - 50)
    for _ in range(2):
        bench.disk = bench.sim.crash()
        bench.open(clean=False, recovery_point=recovery_point)
        assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)]
        assert bench.log.end_offset == bases[3] - RECORDS


@pytest.mark.parametrize(
    ("at", "data"), [(23, (RECORDS + 4).to_bytes(4, "big")), (3, b"\1"), (6, b"\1")]
)
def test_an_empty_last_segment_stays_behind_a_damaged_batch(at: int, data: bytes) -> None:
    """Only a batch that starts where the empty segment does was written after a failed roll."""
    bench = _filled()
    last = bench.log.end_offset - RECORDS
    bench.log.roll(NOW_MS)
    _overwrite(bench, last, at, data)
    for _ in range(2):
        bench.crash()
        assert bench.log.end_offset == last + RECORDS
        assert _spans(list(bench.log.damages)) == [(last, last + RECORDS)]


def test_a_base_offset_that_is_too_high_between_gaps_ends_the_log_before_it() -> None:
    """As in the last segment of a copy of a compacted log. The next batch fits what came before."""
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 4, 9, 15, 20):
        batch = batch_of(2, base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    _flip(bench, 9, 5, 2)
    bench.crash()
    assert bench.log.end_offset == 6
    assert _readable(bench) == [0, 4]
    assert bench.state.lost_records


@pytest.mark.parametrize("config", [SMALL, SPARSE])
def test_a_look_up_by_time_behind_damage_is_no_look_up_behind_the_end(config: TopicConfig) -> None:
    """Consumers would go to the end. The damage is checked, and then the record is found."""
    bench = Bench(config=config)
    for number in range(12):
        bench.append(batch_of(RECORDS, timestamps=[NOW_MS + number] * RECORDS, value=b"value"))
    bench.reopen()
    _overwrite(bench, 3 * RECORDS, 4, b"\xff" * 13)
    wanted = NOW_MS + 6
    with contextlib.suppress(CorruptMessage):
        found = bench.log.batch_at_time(wanted)
        assert found is not None
        assert read_header(found.read()).max_timestamp == wanted
    newest = bench.log.segments()[0].max_timestamp
    assert newest >= wanted
    bench.log.add_damage(Damage(Offset(9), Offset(12), Offset(0), bench.path(0), "", 291, 388))
    found = bench.log.batch_at_time(wanted)
    assert found is not None
    assert read_header(found.read()).max_timestamp == wanted


def _recover_partly(bench: Bench, steps_done: int) -> None:
    bench.disk = bench.sim.crash()
    files = FileCache(bench.disk, 100)
    options = OpenOptions(now_ms=NOW_MS, clean=False, lost_power=False)
    opening = opening_log(files, bench.dir, PARTITION, bench.config, bench.state, options)
    job = next(opening)
    with contextlib.suppress(StopIteration):
        for _ in range(steps_done):
            job = opening.send(None if job is TURN else job())


@pytest.mark.parametrize("number", [1, -1])
def test_a_recovery_that_is_killed_leaves_the_index_entries_behind_damage(number: int) -> None:
    bench = _filled()
    bench.close()
    bad = _bases(bench)[number] + RECORDS
    _overwrite(bench, bad, 4, b"\0" * 60)
    for steps_done in range(30):
        _recover_partly(bench, steps_done)
        bench.disk = bench.sim.crash()
        bench.open(clean=False, lost_power=False)
        assert _spans(list(bench.log.damages)) == [(bad, bad + RECORDS)], steps_done


def test_a_recovery_that_is_killed_forgets_no_aborted_transaction() -> None:
    bench = _with_transactions((MarkerType.ABORT, MarkerType.ABORT), "first marker")
    for steps_done in range(20):
        _recover_partly(bench, steps_done)
        bench.crash()
        found = bench.log.aborted_between(Offset(0), bench.log.end_offset)
        assert [each.first_offset for each in found] == [0, 4], steps_done


@pytest.mark.parametrize("is_known", ["before", "after a kill", "after the start moved"])
def test_what_follows_damage_below_the_start_can_be_read(is_known: str) -> None:
    """Without an index entry in between, a reader comes past the damage."""
    bench = _filled(SPARSE)
    base = _bases(bench)[1]
    bad, start = base + RECORDS, base + 2 * RECORDS
    _overwrite(bench, bad, 16, b"?")  # Not a header any more.
    if is_known == "before":
        [damage] = _check(bench, 1).damages
        bench.log.add_damage(damage)
    bench.log.advance_start(Offset(start))
    if is_known == "after a kill":
        bench.crash()
    elif is_known == "after the start moved":
        [damage] = _check(bench, 1).damages
        bench.log.add_damage(damage)
    assert bench.log.damages == ()
    assert list(bench.state.problems) == []
    assert _readable(bench) == [each for each in ALL if each >= start]
    bench.truncate_to(Offset(start + RECORDS))
    bench.append(batch_of(RECORDS))
    assert _readable(bench) == [start, start + RECORDS]


def test_damage_behind_a_truncation_refuses_nothing_that_is_appended_there() -> None:
    """A base offset that is too high before a damaged batch: what the check finds behind it has
    wrong offsets."""
    bench = Bench(config=TopicConfig(index_interval_bytes=1))
    for _ in range(12):
        bench.append(batch_of(RECORDS, value=b"value"))
    bench.reopen()  # With an index in its file.
    _flip(bench, 12, 70)
    _flip(bench, 9, 7, 2)  # From 9 to 13.
    bench.crash()
    assert bench.log.end_offset == 9
    assert bench.log.damages == ()
    for _ in range(5):
        bench.append(batch_of(RECORDS))
    assert _readable(bench) == ALL[:8]


@pytest.mark.parametrize("outcome", [MarkerType.ABORT, MarkerType.COMMIT])
def test_further_kills_do_not_forget_what_a_stop_has_noted_of_a_damaged_marker(
    outcome: MarkerType,
) -> None:
    bench = Bench(config=TopicConfig(index_interval_bytes=1))
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    marker = bench.append_marker(7, 0, outcome).base_offset
    bench.append()
    bench.close()
    _flip(bench, marker, HEADER_BYTES + 3)
    for _ in range(3):
        bench.crash()
        assert _spans(list(bench.log.damages)) == [(marker, marker + 1)]
        end = bench.append().last_offset + 1
        assert bench.log.producers.last_stable_offset(Offset(0), Offset(end)) == end


def test_a_second_damaged_header_does_not_have_the_index_rebuilt_at_every_look_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = _filled()
    base = _bases(bench)[1]
    bench.reopen()
    for number in (2, 5):
        _overwrite(bench, base + number * RECORDS, 16, b"?")
    for _ in range(5):
        with pytest.raises(CorruptMessage):
            bench.log.read(Offset(base + 6 * RECORDS), 1, bench.log.end_offset, whole_batch=True)
    assert caplog.text.count("index does not match its log") == 1
    assert _spans(_check(bench, 1).damages) == [
        (base + number * RECORDS, base + (number + 1) * RECORDS) for number in (2, 5)
    ]


def test_a_transaction_around_damage_whose_abort_was_not_synced_stays_aborted() -> None:
    """After a power loss the log may have the marker, and the transaction index not."""
    bench = Bench(config=TopicConfig(index_interval_bytes=1))
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    bad = bench.append().base_offset
    bench.append()
    bench.sync()
    bench.append_marker(7, 0, MarkerType.ABORT)
    aborted = bench.log.aborted_between(Offset(0), bench.log.end_offset)
    bench.files.get(bench.log.active.log_path).sync()
    _flip(bench, bad, HEADER_BYTES)
    bench.lose_power(tear=False)
    assert _spans(list(bench.log.damages)) == [(bad, bad + 1)]
    assert bench.log.aborted_between(Offset(0), bench.log.end_offset) == aborted != []


@pytest.mark.parametrize("seed", range(60))
def test_one_damaged_batch_is_all_that_is_refused_whenever_the_process_is_killed(seed: int) -> None:
    bench = seeded(seed, config=SMALL)
    random = bench.sim.drive.tears.stream("damage")
    for _ in range(30):
        bench.epoch += random.chance(0.1)
        bench.append(batch_of(1 + random.below(3), value=b"v" * random.below(90)))
    bench.reopen()  # With all indexes in their files.
    headers, end = bench.headers(), bench.log.end_offset
    victim = headers.pop(random.below(len(headers) - 1))
    damaged = [(victim.base_offset, victim.next_offset)]
    byte = random.below(victim.size_bytes - 4)
    _flip(bench, victim.base_offset, byte if byte < 12 else byte + 4, random.below(8))
    for calls in (None, random.below(20), random.below(60), None):
        bench.disk = bench.sim.crash()
        if calls is not None:
            bench.sim.faults.crash_after(calls)
            with contextlib.suppress(Revoked):
                bench.open(clean=False, lost_power=False, leader_epoch_max=bench.epoch)
            bench.sim.faults.clear()
            bench.disk = bench.sim.crash()
        bench.open(clean=False, lost_power=False, leader_epoch_max=bench.epoch)
        assert _spans(list(bench.log.damages)) == damaged
        assert _readable(bench) == [header.base_offset for header in headers]
        assert bench.log.end_offset == end
    bench.reopen()
    assert _spans(list(bench.log.damages)) in ([], damaged), "a clean start reads few headers"
