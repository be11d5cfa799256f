"""A log compared with a plain list: they always have the same records."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from suwi.model.ids import LeaderEpoch, Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import batches, read_header
from tests.log.kit import NOW_MS, apply_retention, batch_of, batches_in, seeded


@dataclass(frozen=True)
class Entry:
    """One batch as it was written."""

    data: bytes
    base: int
    end: int
    epoch: int
    timestamp: int


def _entry(data: bytes) -> Entry:
    header = read_header(data)
    return Entry(
        bytes(data),
        header.base_offset,
        header.next_offset,
        header.partition_leader_epoch,
        header.max_timestamp,
    )


class LogMachine(RuleBasedStateMachine):
    """Small segments, dense indexes and few open files, so that everything happens often."""

    def __init__(self) -> None:
        super().__init__()
        config = TopicConfig(
            segment_bytes=1024, index_interval_bytes=150, segment_ms=10_000, retention_ms=-1
        )
        self.bench = seeded(0, config=config, open_files_max=2)
        self.model: list[Entry] = []
        self.start = 0
        self.end = 0
        self.synced_end = 0
        self.truncated_unsynced = False
        self.sequence = 0
        self.last_sent: tuple[int, int] | None = None
        assert self.bench.log.end_offset == 0

    # -- writing -------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 300),
        age=st.integers(-20_000, 20_000),
        idempotent=st.booleans(),
    )
    def append(self, count: int, size: int, age: int, idempotent: bool) -> None:
        batch = batch_of(
            count,
            timestamps=[NOW_MS + age] * count,
            value=b"x" * size,
            producer=(7, 0, self.sequence) if idempotent else None,
        )
        base = self.bench.append(batch).base_offset
        assert base == self.end
        self._remember(bytes(batch))
        if idempotent:
            self.sequence += count
            self.last_sent = (base, count)

    @rule(epoch_step=st.integers(1, 3))
    def become_leader_again(self, epoch_step: int) -> None:
        self.bench.epoch += epoch_step

    @rule(count=st.integers(1, 3))
    def follow(self, count: int) -> None:
        base = self.end
        batch = batch_of(
            count, base_offset=base, epoch=self.bench.epoch, timestamps=[NOW_MS] * count
        )
        self.bench.log.append_as_follower(memoryview(batch), LeaderEpoch(self.bench.epoch), NOW_MS)
        self._remember(bytes(batch))

    @rule()
    def roll(self) -> None:
        self.bench.log.roll(NOW_MS)

    @rule()
    def sync(self) -> None:
        self.bench.sync()
        self.truncated_unsynced = False
        self.synced_end = self.end

    @precondition(lambda self: self.last_sent is not None and self._holds(self.last_sent[0]))
    @rule()
    def retry(self) -> None:
        assert self.last_sent is not None
        base, count = self.last_sent
        again = self.bench.append(batch_of(count, producer=(7, 0, self.sequence - count)))
        assert again.is_duplicate
        assert again.base_offset == base

    # -- removing ------------------------------------------------------------------------------

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        offset = self.start + int((self.end - self.start) * where)
        self.truncated_unsynced |= offset < self.end
        self.bench.truncate_to(Offset(offset))
        self._cut(offset)

    @rule(where=st.floats(0, 1))
    def advance_start(self, where: float) -> None:
        offset = self.start + int((self.end - self.start) * where)
        self.bench.log.advance_start(Offset(offset))
        self.start = max(self.start, offset)

    @rule(keep=st.integers(0, 3_000))
    def retain(self, keep: int) -> None:
        self.bench.log.config = TopicConfig(retention_bytes=keep, retention_ms=-1)
        for path in apply_retention(self.bench.log, self.bench.log.end_offset, NOW_MS):
            self.bench.disk.remove(path)
        self.bench.log.config = self.bench.config
        segments = self.bench.log.segments()
        self.start = max(self.start, segments[0].base_offset)

    # -- stopping ------------------------------------------------------------------------------

    @rule()
    def stop_and_start(self) -> None:
        self.sync()
        self.bench.reopen()

    @rule()
    def die(self) -> None:
        self.bench.crash()

    @rule(tear=st.booleans())
    def lose_power(self, tear: bool) -> None:
        self.bench.lose_power(tear=tear)
        found = self.bench.log.end_offset
        assert self.synced_end <= found
        if self.truncated_unsynced:
            # It may be undone: only synced data is guaranteed.
            safe = [entry for entry in self.model if entry.end <= self.synced_end]
            now = [_entry(data) for data, _ in batches_in(self.bench.log)]
            readable = [entry for entry in safe if entry.end > self.start]
            assert now[: len(readable)] == readable
            self.model, self.end = now, found
            self._take_over()
        else:
            assert found <= self.end
            self._cut(found)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def reads_are_the_same(self) -> None:
        log = self.bench.log
        expected = [entry.data for entry in self.model if entry.end > self.start]
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        assert [data for data, _ in batches_in(log)] == expected

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        for entry in self.model:
            if entry.base >= self.start:
                assert self.bench.log.epochs.epoch_at(Offset(entry.base)) == entry.epoch

    @invariant()
    def every_offset_is_found(self) -> None:
        log = self.bench.log
        step = max(1, (self.end - self.start) // 7)
        for offset in range(self.start, self.end, step):
            expected = next(entry for entry in self.model if entry.end > offset)
            part = log.read(Offset(offset), 1, Offset(self.end), whole_batch=True)
            assert part is not None
            assert next(iter(batches(part.read())))[1].base_offset == expected.base

    @invariant()
    def times_are_found(self) -> None:
        log = self.bench.log
        readable = [entry for entry in self.model if entry.end > self.start]
        for timestamp in (0, NOW_MS - 5_000, NOW_MS, NOW_MS + 7_000, NOW_MS + 20_001):
            expected = next((e.base for e in readable if e.timestamp >= timestamp), None)
            part = log.batch_at_time(timestamp)
            found = None if part is None else read_header(part.read()).base_offset
            assert found == expected

    @invariant()
    def segments_adjoin(self) -> None:
        segments = self.bench.log.segments()
        assert segments[0].base_offset <= self.start
        for segment, following in pairwise(segments):
            assert segment.next_offset == following.base_offset
        assert segments[-1].next_offset == self.end

    # -- the model -----------------------------------------------------------------------------

    def _remember(self, data: bytes) -> None:
        self.model.append(_entry(data))
        self.end = self.model[-1].end

    def _cut(self, offset: int) -> None:
        """Batches above `offset` are removed, and the one that contains it."""
        self.model = [entry for entry in self.model if entry.end <= offset]
        self.end = self.bench.log.end_offset
        assert self.end <= offset
        assert all(entry.end <= self.end for entry in self.model)
        self.start = min(self.start, self.end)
        self.synced_end = min(self.synced_end, self.end)
        self._take_over()

    def _take_over(self) -> None:
        """The producer's last batches may be lost: it continues with the sequence in the log."""
        self.start = self.bench.log.start_offset
        known = self.bench.log.producers.get(7)  # type: ignore[arg-type]
        self.sequence = 0 if known is None else known.last_sequence + 1
        self.last_sent = None

    def _holds(self, base: int) -> bool:
        return any(entry.base == base for entry in self.model)


def test_a_producer_below_the_log_start_is_known_after_a_truncation_and_a_crash() -> None:
    machine = LogMachine()
    machine.append(count=1, size=0, age=0, idempotent=True)
    machine.follow(count=1)
    machine.advance_start(where=0.5)
    machine.truncate(where=0.0)
    machine.die()
    machine.append(count=1, size=0, age=0, idempotent=True)


TestLogAgainstAList = LogMachine.TestCase
TestLogAgainstAList.settings = settings(stateful_step_count=40)
