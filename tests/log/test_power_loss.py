"""A power loss: synced data survives, and recovery finds a prefix of what was written."""

import pytest

from suwi.log import names
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.record import MarkerType
from tests.log.kit import NOW_MS, Bench, batch_of, seeded, values_in

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def test_synced_records_survive_with_their_directory_entries() -> None:
    """Directory entries too: earlier a segment whose entry was not synced was lost."""
    bench = Bench(config=SMALL)
    for i in range(60):
        bench.epoch = i // 25
        bench.append(batch_of(producer=(7, 0, i), timestamps=[NOW_MS + i]))
    bench.append(batch_of(producer=(8, 0, 0), transactional=True))
    bench.append_marker(8, 0, MarkerType.ABORT)
    bench.log.roll(NOW_MS)
    bench.append()
    bench.sync()
    before, aborted = values_in(bench.log), bench.log.aborted_between(Offset(0), Offset(99))
    assert len(aborted) == 1
    bench.lose_power(tear=False)
    assert values_in(bench.log) == before
    assert bench.log.epochs.entries() == [(0, 0), (1, 25), (2, 50)]
    assert bench.log.aborted_between(Offset(0), Offset(99)) == aborted
    assert bench.append(batch_of(producer=(7, 0, 59))).is_duplicate


def test_aborted_transactions_are_synced_with_their_records() -> None:
    """The segment is finished after the sync, and then no later sync includes it."""
    bench = Bench(config=SMALL)
    bench.append(batch_of(producer=(8, 0, 0), transactional=True))
    bench.append_marker(8, 0, MarkerType.ABORT)
    bench.sync()
    aborted = bench.log.aborted_between(Offset(0), Offset(99))
    bench.log.roll(NOW_MS)
    bench.append()
    bench.sync()
    bench.lose_power(tear=False)
    assert bench.log.aborted_between(Offset(0), Offset(99)) == aborted != []


def test_the_indexes_of_a_finished_segment_are_synced() -> None:
    """All its records were synced before the roll, which wrote the last index entries."""
    bench = Bench(config=SMALL)
    bench.append_many(10)
    bench.sync()
    bench.log.roll(NOW_MS)
    bench.append()
    bench.sync()
    paths = [bench.path(0, suffix) for suffix in (names.OFFSET_INDEX, names.TIME_INDEX)]
    before = [bench.disk.read_bytes(path) for path in paths]
    bench.disk = bench.sim.power_loss(tear=False)
    assert [bench.disk.read_bytes(path) for path in paths] == before != [b"", b""]


def test_the_topic_id_is_synced_with_the_first_records() -> None:
    bench = Bench()
    path = f"{bench.dir}/{names.PARTITION_METADATA}"
    bench.append()
    bench.disk.write_atomically(path, b"version: 0\ntopic_id: x", sync=False)
    bench.sync()
    bench.lose_power(tear=False)
    assert bench.disk.read_bytes(path) == b"version: 0\ntopic_id: x"


@pytest.mark.parametrize("seed", range(150))
def test_recovery_finds_a_valid_prefix_with_everything_that_was_synced(seed: int) -> None:
    bench = seeded(seed, config=SMALL)
    random = bench.sim.drive.tears.stream("workload")
    for run in range(3):
        synced = bench.log.recovery_point
        for _ in range(random.below(60)):
            bench.epoch = max(bench.epoch, random.below(4) + run)
            bench.append(batch_of(1 + random.below(3), value=b"v" * random.below(200)))
            if random.chance(0.1):
                bench.sync()
                synced = bench.log.end_offset
        before = values_in(bench.log)
        epochs = bench.log.epochs
        bench.lose_power()
        after = values_in(bench.log)
        assert after == before[: len(after)]
        assert synced <= bench.log.end_offset
        for header in bench.headers():
            offset = Offset(header.base_offset)
            assert bench.log.epochs.epoch_at(offset) == epochs.epoch_at(offset)


@pytest.mark.parametrize("seed", range(150))
def test_synced_records_survive_truncations_before_them(seed: int) -> None:
    """Earlier truncated segments reappeared beside the new ones, which were then removed."""
    bench = seeded(seed, config=SMALL)
    random = bench.sim.drive.tears.stream("workload")
    for _ in range(4):
        bench.epoch += 1
        bench.append_many(random.below(50), value=b"e%d" % bench.epoch)
        if random.chance(0.5):
            bench.sync()
        bench.truncate_to(Offset(random.below(bench.log.end_offset + 1)))
    bench.epoch += 1
    bench.append_many(30, value=b"last")
    bench.sync()
    before, epochs = values_in(bench.log), bench.log.epochs.entries()
    bench.append_many(random.below(20))
    bench.lose_power()
    assert values_in(bench.log)[: len(before)] == before
    assert bench.log.epochs.entries() == epochs


@pytest.mark.parametrize("seed", range(100))
def test_a_follower_that_lost_power_after_truncating_can_fetch_again(seed: int) -> None:
    bench = seeded(seed, config=SMALL)
    for base in range(40):
        batch = batch_of(base_offset=base, epoch=6 if base < 20 else 7)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(7), NOW_MS)
    bench.sync()
    bench.truncate_to(Offset(20))
    for base in range(20, 25):
        batch = batch_of(base_offset=base, epoch=6, value=b"leader 8 has these")
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(8), NOW_MS)
    bench.sync()
    bench.lose_power()
    assert bench.log.epochs.entries() == [(6, 0)]
    assert bench.log.end_offset == 25


@pytest.mark.parametrize("seed", range(50))
def test_a_truncation_survives_a_power_loss_once_synced(seed: int) -> None:
    """Earlier nothing above the recovery point was left to sync, so the truncation never was."""
    bench = seeded(seed, config=SMALL)
    bench.append_many(60)
    bench.sync()
    bench.truncate_to(Offset(5 + seed))
    before = values_in(bench.log)
    bench.sync()
    assert not bench.log.durability.is_unsynced
    bench.lose_power()
    assert values_in(bench.log) == before


def test_a_cleanly_closed_log_survives_a_power_loss() -> None:
    bench = Bench(config=SMALL)
    bench.append_many(50)
    before = values_in(bench.log)
    bench.close()
    bench.disk = bench.sim.power_loss(tear=False)
    bench.open()
    assert values_in(bench.log) == before


def test_aborted_transactions_that_were_read_again_from_synced_segments_survive() -> None:
    """Their segments are before the recovery point, so no later sync includes them."""
    bench = Bench(config=SMALL)
    bench.append(batch_of(producer=(8, 0, 0), transactional=True))
    bench.append_marker(8, 0, MarkerType.ABORT)
    bench.append_many(60)
    bench.close()
    bench.disk.remove(f"{bench.dir}/{names.LEADER_EPOCHS}")
    bench.open()
    aborted = bench.log.aborted_between(Offset(0), Offset(9))
    bench.append()
    bench.sync()
    bench.lose_power(tear=False)
    assert bench.log.aborted_between(Offset(0), Offset(9)) == aborted != []
