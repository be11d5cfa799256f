"""Damaged logs: a tail truncated at every byte, thousands of flipped bits."""

import pytest

from suwi.log.batch_scan import scan_batches
from suwi.log.log_segments import LogSlice
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage
from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import LOG_OVERHEAD_BYTES
from suwi.sim import SimRandom
from tests.log.kit import NOW_MS, Bench, batch_of, batches_in, values_in

MEGABYTE = 1 << 20


def _ends_of_batches(data: bytes) -> list[int]:
    ends, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        position += length + LOG_OVERHEAD_BYTES
        ends.append(position)
    return ends


def _next_offsets(data: bytes) -> dict[int, int]:
    """The next offset of a log that ends at a position."""
    found, start = {0: 0}, 0
    for end in _ends_of_batches(data):
        delta = int.from_bytes(data[start + 23 : start + 27], "big")
        found[end] = int.from_bytes(data[start : start + 8], "big") + delta + 1
        start = end
    return found


def _log_of(size_bytes: int) -> Bench:
    bench = Bench()
    random = SimRandom("cut")
    while bench.log.size_bytes < size_bytes:
        bench.append(batch_of(1 + random.below(3), value=random.token(random.below(900))))
    return bench


class _Memory:
    """A read-only file: a log truncated at `size_bytes`, without a copy for every truncation."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(data)

    def pread(self, size_bytes: int, position: int) -> memoryview:
        return self._data[position : min(position + size_bytes, self.size_bytes)]


@pytest.mark.slow
def test_a_megabyte_cut_at_every_byte_ends_with_its_last_whole_batch() -> None:
    """What recovery reads, for each of a million truncations, from the last whole batch on."""
    bench = _log_of(MEGABYTE)
    data = bench.disk.read_bytes(bench.path(0))
    ends = [0, 0, *_ends_of_batches(data)]
    next_offsets = _next_offsets(data)
    file = _Memory(data)
    number = len(ends) - 1
    for cut in range(len(data), -1, -1):
        while ends[number] > cut:
            number -= 1
        file.size_bytes = cut
        start = ends[number - 1 if cut == ends[number] and number else number]
        prefix = ValidPrefix(Offset(next_offsets[start]), 0, {}, None, size_bytes=start)
        for position, header, _ in scan_batches(file, start, cut):  # type: ignore[arg-type]
            assert prefix.accept(position, header)
        assert prefix.size_bytes == ends[number]
        assert prefix.expected == next_offsets[ends[number]]


@pytest.mark.slow
def test_a_log_cut_at_every_byte_is_opened_with_every_whole_batch() -> None:
    """The same with everything that opening a log does, on a smaller log."""
    bench = _log_of(10_000)
    bench.close()
    data = bench.disk.read_bytes(bench.path(0))
    next_offsets = _next_offsets(data)
    ends = sorted(next_offsets)
    whole = len(ends) - 1
    for cut in range(len(data), -1, -1):
        while ends[whole] > cut:
            whole -= 1
        file = bench.disk.open(bench.path(0))
        file.truncate(0)
        file.pwrite(memoryview(data)[:cut], 0)
        file.close()
        log = bench.recover()
        assert log.end_offset == next_offsets[ends[whole]]
        assert bench.disk.size(bench.path(0)) == ends[whole]


# -- flipped bits ---------------------------------------------------------------------------------


def _attacked_log() -> Bench:
    bench = Bench(config=TopicConfig(segment_bytes=2048))
    random = SimRandom("flips")
    sequence = 0
    for i in range(60):
        bench.epoch = 3 + i // 10
        count = 1 + random.below(4)
        producer = (9, 0, sequence) if i % 2 else None
        bench.append(batch_of(count, value=random.token(random.below(200)), producer=producer))
        sequence += count if producer else 0
    assert len(bench.log.segments()) >= 4
    return bench


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_a_flipped_bit_truncates_the_log_before_or_after_the_damaged_batch(seed: int) -> None:
    """Two hundred bits for each seed, one at a time, anywhere in the log files.

    Whatever is served has a correct checksum, increasing offsets and non-decreasing epochs (the kit
    checks that on every read), and everything before the damaged batch is still there.
    """
    random = SimRandom(seed)
    bench = _attacked_log()
    before = values_in(bench.log)
    segments = bench.log.segments()
    bench.close()
    files = {name: bench.disk.read_bytes(f"{bench.dir}/{name}") for name in bench.names()}
    logs = [(segment.log_path, segment.size_bytes) for segment in segments]
    for _ in range(200):
        path, size_bytes = random.choice(logs)
        bit = random.below(size_bytes * 8)
        content = bytearray(files[path.rsplit("/", 1)[1]])
        content[bit // 8] ^= 1 << bit % 8
        attacked = Bench(config=bench.config)
        attacked.disk.make_dirs(attacked.dir)
        for name, whole in files.items():
            data = bytes(content) if path.endswith(name) else whole
            attacked.disk.write_atomically(f"{attacked.dir}/{name}", data)
        log = attacked.open(clean=False, leader_epoch_max=100)
        after = values_in(log)
        damaged = _number_of_batch(logs, files, path, bit // 8)
        assert after[:damaged] == before[:damaged]
        assert len(after) >= damaged
        # From the damaged batch on, it is that batch itself, or what was written.
        assert after[damaged + 1 :] == before[damaged + 1 :] or len(after) == damaged
        offsets = [header.base_offset for _, header in batches_in(log)]
        assert offsets == sorted(offsets)
        attacked.epoch = 100
        attacked.append(batch_of(producer=(50, 0, 0)))
        assert len(values_in(attacked.log)) == len(after) + 1


def _number_of_batch(
    logs: list[tuple[str, int]], files: dict[str, bytes], path: str, position: int
) -> int:
    number = 0
    for log_path, _ in logs:
        ends = _ends_of_batches(files[log_path.rsplit("/", 1)[1]])
        if log_path == path:
            return number + sum(1 for end in ends if end <= position)
        number += len(ends)
    raise AssertionError


def test_a_batch_with_a_flipped_offset_is_not_served_at_another_offset() -> None:
    """The base offset is outside the checksum: the neighbouring batches reveal the error."""
    for victim in range(20):
        for bit in range(40):
            bench = Bench(config=TopicConfig(segment_bytes=1024))
            for _ in range(20):
                bench.append(batch_of(3))
            before = values_in(bench.log)
            segment = next(s for s in reversed(bench.log.segments()) if s.base_offset <= victim * 3)
            found = segment.locate(Offset(victim * 3))
            assert found is not None
            header_byte = found.position + 7 - bit // 8
            old = bench.disk.read_bytes(segment.log_path)[header_byte]
            bench.sim.overwrite(segment.log_path, bytes([old ^ 1 << bit % 8]), header_byte)
            bench.recover()
            after = values_in(bench.log)
            assert after == before[: len(after)], f"batch {victim}, bit {bit}"
            assert len(after) >= victim
            if victim < 19 or bit > 30:
                assert len(after) == victim


def test_a_batch_with_a_flipped_epoch_ends_the_log_before_it_or_is_not_detected() -> None:
    """The leader epoch is outside the checksum too; the checkpoint has the correct one."""
    for victim in range(12):
        for bit in range(32):
            bench = Bench()
            for i in range(12):
                bench.epoch = 5 + i // 4
                bench.append(batch_of(3))
            before = values_in(bench.log)
            found = bench.log.active.locate(Offset(victim * 3))
            assert found is not None
            byte = found.position + 15 - bit // 8
            old = bench.disk.read_bytes(bench.path(0))[byte]
            bench.sim.overwrite(bench.path(0), bytes([old ^ 1 << bit % 8]), byte)
            bench.recover()
            after = values_in(bench.log)
            assert after[:victim] == before[:victim]


@pytest.mark.parametrize("recovery_point", [0, 1, 40])
def test_a_gap_between_compacted_segments_of_apache_kafka_does_not_end_the_log(
    recovery_point: int,
) -> None:
    """Its compaction removes the last batch of a segment, and its followers roll at a batch."""
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 1, 30, 31, 60):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
        if base in (1, 31):
            bench.log.roll(NOW_MS, Offset(base + 10))
    assert [s.base_offset for s in bench.log.segments()] == [0, 11, 41]
    bench.disk = bench.sim.crash()
    bench.open(clean=False, recovery_point=recovery_point, is_adopted=True)
    assert [h.base_offset for h in bench.headers()] == [0, 1, 30, 31, 60]


@pytest.mark.parametrize("recovery_point", [0, 1, 30])
def test_a_compacted_log_whose_older_segment_lost_its_end_ends_there(recovery_point: int) -> None:
    """The kernel wrote the newer segment first. A replica without the records in between would
    be in sync with its leader, and a coordinator would load a state that never was."""
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 1, 30, 31, 60):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
        if base == 31:
            bench.log.roll(NOW_MS)
    lost = bench.log.segments()[0].locate(Offset(31))
    assert lost is not None
    file = bench.disk.open(bench.path(0))
    file.truncate(lost.position)
    file.close()
    bench.disk = bench.sim.crash()
    bench.open(clean=False, recovery_point=recovery_point)
    assert [h.base_offset for h in bench.headers()] == [0, 1, 30]
    assert bench.log.end_offset == 31


def test_a_gap_that_is_too_large_for_an_index_does_not_end_a_compacted_log() -> None:
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 1, 2**31 + 2, 2**31 + 3):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    assert [s.base_offset for s in bench.log.segments()] == [0, 2**31 + 2]
    bench.recover()
    assert [h.base_offset for h in bench.headers()] == [0, 1, 2**31 + 2, 2**31 + 3]


def test_a_gap_that_compaction_left_does_not_end_a_compacted_log() -> None:
    bench = Bench(config=TopicConfig(cleanup_policy=("compact",)))
    for base in (0, 1, 7, 30, 31, 90):
        batch = batch_of(base_offset=base, epoch=0)
        bench.log.append_as_follower(memoryview(batch), LeaderEpoch(0), NOW_MS)
    bench.recover()
    assert [h.base_offset for h in bench.headers()] == [0, 1, 7, 30, 31, 90]


def test_a_damaged_batch_in_a_running_log_leaves_those_after_it_readable() -> None:
    """Its header claims that it reaches beyond the end; the index entry for it is correct."""
    bench = Bench(config=TopicConfig(index_interval_bytes=0))
    for _ in range(20):
        bench.append()

    def read(offset: int) -> LogSlice | None:
        end = bench.log.end_offset
        return bench.log.read(Offset(offset), 1000, end, whole_batch=True)

    segment = bench.log.active
    found = segment.locate(Offset(5))
    assert found is not None
    bench.files.get(segment.log_path).pwrite(b"\0\x10\0\0", found.position + 8)
    for _ in range(2):
        with pytest.raises(CorruptMessage):
            read(5)
        assert read(2) is not None
        assert read(12) is not None
    bench.append()
    assert read(20) is not None
