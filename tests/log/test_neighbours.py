"""Each segment against its neighbours when a log is opened: missing records, and legal gaps."""

from collections.abc import Callable

import pytest

from suwi.log import names
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import run_steps
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import batches
from suwi.records.record import MarkerType
from tests.log.kit import NOW_MS, Bench, batch_of
from tests.log.test_segment_check import RECORDS, _flip

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def _filled(config: TopicConfig = SMALL) -> Bench:
    bench = Bench(config=config)
    for _ in range(40):
        bench.append(batch_of(3))
    assert len(bench.log.segments()) >= 4
    return bench


def _remove_segment(bench: Bench, base_offset: int) -> None:
    for suffix in names.SEGMENT_FILES:
        if bench.disk.exists(bench.path(base_offset, suffix)):
            bench.disk.remove(bench.path(base_offset, suffix))


def _offsets_read(log: PartitionLog, offset: int) -> range:
    """The offsets that one fetch returns."""
    part = log.read(Offset(offset), 1 << 20, log.end_offset, whole_batch=True)
    assert part is not None
    headers = [header for _, header in batches(part.read())]
    return range(headers[0].base_offset, headers[-1].next_offset)


def _problems(bench: Bench) -> list[tuple[str, str]]:
    return [(problem.kind.label, problem.place) for problem in bench.state.problems]


def test_a_missing_middle_segment_is_found_when_the_log_is_opened() -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bench.close()
    _remove_segment(bench, bases[1])
    log = bench.open()
    assert [(d.first, d.end) for d in log.damages] == [(bases[1], bases[2])]
    assert _problems(bench) == [("damaged-batch", f"orders-0 offsets {bases[1]}-{bases[2] - 1}")]
    assert _offsets_read(log, 0) == range(bases[1])
    for offset in (bases[1], bases[2] - 1):
        with pytest.raises(KafkaStorageError):
            log.read(offset, 1 << 20, log.end_offset, whole_batch=True)
    assert _offsets_read(log, bases[2]) == range(bases[2], bases[3])


def test_a_missing_middle_segment_is_found_after_a_crash_too() -> None:
    bench = _filled()
    bench.sync()
    bases = [segment.base_offset for segment in bench.log.segments()]
    recovery_point = bench.log.recovery_point
    _remove_segment(bench, bases[1])
    bench.disk = bench.sim.crash()
    log = bench.open(clean=False, recovery_point=recovery_point)
    assert [(d.first, d.end) for d in log.damages] == [(bases[1], bases[2])]


@pytest.mark.parametrize("cut_bytes", [1, 100])
def test_a_closed_segment_that_lost_its_end_is_damaged_up_to_the_next_one(cut_bytes: int) -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bench.close()
    size_bytes = bench.disk.size(bench.path(bases[1]))
    file = bench.disk.open(bench.path(bases[1]))
    file.truncate(size_bytes - cut_bytes)
    file.close()
    log = bench.open()
    [damage] = log.damages
    assert bases[1] < damage.first < damage.end == bases[2]
    assert _offsets_read(log, bases[1]) == range(bases[1], damage.first)
    with pytest.raises(KafkaStorageError):
        log.read(damage.first, 1 << 20, log.end_offset, whole_batch=True)
    assert _offsets_read(log, bases[2]) == range(bases[2], bases[3])


def test_the_problem_ends_when_the_missing_records_are_deleted_or_truncated() -> None:
    removals: list[Callable[[Bench], object]] = [
        lambda bench: bench.log.remove_oldest(2),
        lambda bench: bench.truncate_to(Offset(3)),
        lambda bench: run_steps(bench.log.restarting_at(Offset(3))),
        lambda bench: bench.log.close(),
    ]
    for remove in removals:
        bench = _filled()
        bases = [segment.base_offset for segment in bench.log.segments()]
        bench.close()
        _remove_segment(bench, bases[1])
        assert bench.open().damages
        assert bench.state.damaged
        remove(bench)
        assert not bench.log.damages
        assert not bench.state.damaged
        assert _problems(bench) == []


def test_a_gap_below_a_moved_start_is_legal() -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bench.close()
    _remove_segment(bench, bases[1])
    assert not bench.open(start_offset=bases[2]).damages
    [damage] = bench.open(start_offset=bases[2] - 2).damages
    assert (damage.first, damage.end) == (bases[2] - 2, bases[2])


def _with_a_gap(config: TopicConfig) -> Bench:
    bench = Bench(config=config)
    for base in (0, 1, 30, 31):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
        if base == 1:
            bench.log.roll(NOW_MS, Offset(30))
    bench.close()
    return bench


def test_a_gap_in_an_adopted_log_is_legal() -> None:
    assert not _with_a_gap(TopicConfig()).open(is_adopted=True).damages


def test_a_gap_in_a_compacted_log_is_legal() -> None:
    """A log that Apache Kafka has compacted counts as compacted for ever, see `expect_gaps`."""
    bench = _with_a_gap(TopicConfig(cleanup_policy=("compact",)))
    assert not bench.open().damages
    bench = _with_a_gap(TopicConfig())
    assert not bench.open(was_compacted=True).damages
    assert bench.open().damages


def test_a_gap_that_is_too_large_for_an_index_is_legal() -> None:
    bench = Bench()
    for base in (0, 1, 2**31 + 2, 2**31 + 3):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    assert [s.base_offset for s in bench.log.segments()] == [0, 2**31 + 2]
    bench.close()
    assert not bench.open().damages


def test_damage_below_the_start_offset_is_forgotten() -> None:
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bench.close()
    _remove_segment(bench, bases[1])
    log = bench.open()
    log.directory.found_damage("a reader has found it, too")
    assert len(_problems(bench)) == 2
    log.advance_start(bases[2])
    assert (log.damages, _problems(bench)) == ((), [])


@pytest.mark.parametrize("lost", [names.LEADER_EPOCHS, names.TXN_INDEX])
def test_a_recovery_does_not_cut_off_what_was_synced_at_a_damaged_batch(lost: str) -> None:
    """Without the epochs, or a transaction index, all batches are read again; those that were
    synced are not judged by it, or every record after the damage would be lost."""
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    bench.close()
    bench.sim.overwrite(bench.path(bases[1]), b"\xff", 150)
    if lost == names.TXN_INDEX:
        bench.disk.write_atomically(bench.path(bases[1], lost), b"damaged", sync=True)
    else:
        bench.disk.remove(f"{bench.dir}/{lost}")
    before = {name: bench.disk.read_bytes(f"{bench.dir}/{name}") for name in bench.names()}
    log = bench.open(clean=False, recovery_point=120)
    assert log.end_offset == 120
    assert [segment.base_offset for segment in log.segments()] == bases
    for base in bases:
        name = bench.path(base).rpartition("/")[2]
        assert bench.disk.read_bytes(bench.path(base)) == before[name]
    [damage] = log.damages
    assert (damage.first, damage.end) == (bases[1] + 3, bases[1] + 6), "the second batch"
    assert [kind for kind, _ in _problems(bench)] == ["damaged-batch"]
    assert _offsets_read(log, 0) == range(bases[1])
    assert _offsets_read(log, bases[1]) == range(bases[1], damage.first)
    with pytest.raises(KafkaStorageError):
        log.read(damage.first, 1 << 20, log.end_offset, whole_batch=True)
    assert _offsets_read(log, damage.end) == range(damage.end, bases[2])
    assert _offsets_read(log, bases[2]) == range(bases[2], bases[3])
    assert bench.append(batch_of(3)).base_offset == 120


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_killed_process_lost_nothing_so_damage_in_a_closed_segment_cuts_off_nothing(
    number: int,
) -> None:
    """Nothing was synced, and all of it was written: only the last write can be incomplete."""
    bench = _filled()
    bases = [segment.base_offset for segment in bench.log.segments()]
    assert bench.log.recovery_point == 0
    bench.sim.overwrite(bench.path(bases[number]), b"\xff", 150)
    log = bench.crash()
    assert (log.end_offset, [segment.base_offset for segment in log.segments()]) == (120, bases)
    [damage] = log.damages
    assert (damage.first, damage.end) == (bases[number] + 3, bases[number] + 6)
    assert [kind for kind, _ in _problems(bench)] == ["damaged-batch"]
    assert not bench.state.lost_records
    assert _offsets_read(log, damage.end) == range(damage.end, bases[number + 1])
    assert _offsets_read(log, bases[-1]).stop == 120


def test_a_killed_process_cuts_off_no_whole_batches_of_the_last_segment() -> None:
    """Only the last write can be incomplete, and whole batches follow the damaged one."""
    bench = _filled()
    last = bench.log.segments()[-1].base_offset
    bench.sim.overwrite(bench.path(last), b"\xff", 150)
    log = bench.crash()
    [damage] = log.damages
    assert (damage.first, damage.end) == (last + 3, last + 6)
    assert not bench.state.lost_records
    assert log.end_offset == 120
    assert _offsets_read(log, damage.end) == range(damage.end, 120)
    assert bench.append(batch_of(3)).base_offset == 120
    assert _offsets_read(log, damage.end) == range(damage.end, 123)


@pytest.mark.parametrize("is_synced", [False, True])
def test_after_a_power_loss_a_damaged_batch_of_the_last_segment_is_kept_if_it_was_synced(
    is_synced: bool,
) -> None:
    """Else the damage may be a hole that the power loss left, and the log ends before it."""
    bench = _filled()
    last = bench.log.segments()[-1].base_offset
    bench.sync()
    bench.sim.overwrite(bench.path(last), b"\xff", 150)
    bench.disk = bench.sim.crash()
    recovery_point = last + (6 if is_synced else 5)
    log = bench.open(clean=False, recovery_point=recovery_point, lost_power=True)
    found = [(damage.first, damage.end) for damage in log.damages]
    assert found == ([(last + 3, last + 6)] if is_synced else [])
    assert log.end_offset == (120 if is_synced else last + 3)


@pytest.mark.parametrize(("damaged", "is_lost"), [(True, True), (False, False)])
def test_a_cut_of_the_last_segment_is_a_loss_unless_its_last_write_was_incomplete(
    damaged: bool, is_lost: bool
) -> None:
    bench = _filled()
    last = bench.path(bench.log.segments()[-1].base_offset)
    size_bytes = bench.disk.size(last)
    if damaged:
        bench.sim.overwrite(last, b"\xff", size_bytes - 1)
    else:
        bench.disk.open(last).truncate(size_bytes - 1)
    log = bench.crash()
    assert log.end_offset < 120
    assert bench.state.lost_records == is_lost


@pytest.mark.parametrize("lost_power", [False, True])
@pytest.mark.parametrize(
    ("outcomes", "aborted"),
    [
        ((MarkerType.ABORT, MarkerType.COMMIT), [(0, 7)]),
        ((MarkerType.COMMIT, MarkerType.ABORT), [(20, 21)]),
    ],
)
def test_the_outcome_of_a_transaction_is_known_though_its_marker_was_damaged_before_a_crash(
    outcomes: tuple[MarkerType, MarkerType], aborted: list[tuple[int, int]], lost_power: bool
) -> None:
    """The transaction index and the producers at the next roll say it: the producer's next
    transaction is not taken for the end of the damaged one."""
    bench = Bench(config=TopicConfig(segment_bytes=1024, index_interval_bytes=100))
    bench.append(batch_of(producer=(7, 0, 0), transactional=True))
    for _ in range(6):
        bench.append()
    damaged = bench.append_marker(7, 0, outcomes[0]).base_offset
    while bench.log.end_offset < 20:
        bench.append()
    assert len(bench.log.segments()) > 1
    bench.append(batch_of(producer=(7, 0, 1), transactional=True))
    bench.append_marker(7, 0, outcomes[1])
    bench.sync()
    position = bench.log.segments()[0].locate(damaged)
    assert position is not None
    bench.sim.overwrite(bench.path(0), b"\xff", position.position + 70)
    bench.disk.remove(f"{bench.dir}/{names.LEADER_EPOCHS}")  # All segments are read again.
    bench.disk = bench.sim.crash()
    log = bench.open(clean=False, recovery_point=22, lost_power=lost_power)
    assert [damage.first for damage in log.damages] == [damaged]
    found = log.aborted_between(Offset(0), log.end_offset)
    assert [(each.first_offset, each.last_offset) for each in found] == aborted
    assert log.producers.last_stable_offset(log.start_offset, log.end_offset) == 22


@pytest.mark.parametrize("config", [SMALL, TopicConfig(segment_bytes=1024)])
def test_a_damaged_header_before_a_segment_has_nothing_else_refused_after_a_clean_start(
    config: TopicConfig,
) -> None:
    """What it claims to be may end far before its segment."""
    for byte in (0, 4, 7, 8, 11, 15, 16, 23, 26):
        for bit in (0, 7):
            bench = _filled(config)
            end = bench.log.segments()[2].base_offset
            bench.close()
            _flip(bench, end - RECORDS, byte, bit)
            bench.open()
            spans = [(damage.first, damage.end) for damage in bench.log.damages]
            assert spans in ([], [(end - RECORDS, end)]), (byte, bit)
