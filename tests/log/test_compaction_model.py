"""Compaction compared with a simple model: the surviving records are always the same.

The model keeps every record with its state. Below the cleaner offset a record survives if no newer
record has its key, it was not aborted and, for a tombstone, its delete horizon has not passed.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from suwi.log import names
from suwi.model.ids import Offset
from suwi.model.topic_config import TopicConfig
from suwi.records.compression import Compression
from suwi.records.record import MarkerType
from tests.log.compaction_kit import Seen, compact, keyed, markers_in, producers_of, seen_in
from tests.log.kit import apply_retention, batches_in, seeded

DELETE_RETENTION_MS = 1000
CONFIG = TopicConfig(
    cleanup_policy=("compact", "delete"),
    segment_bytes=1024,
    index_interval_bytes=150,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a-longer-key-" * 6])
values = st.one_of(st.none(), st.binary(max_size=3), st.just(b"x" * 200))


@dataclass
class Batch:
    """One batch as it was written, with its state in the model."""

    records: list[Seen]
    end: int
    producer_id: int = -1
    is_open: bool = False
    """Part of an open transaction."""
    is_aborted: bool = False
    horizon_ms: int | None = None


@dataclass
class Sender:
    producer_id: int
    sequence: int = 0
    first_open: int | None = None
    batches: list[Batch] = field(default_factory=list)


class CompactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = seeded(0, config=CONFIG, open_files_max=4)
        self.model: list[Batch] = []
        self.idempotent = Sender(1)
        self.transactional = [Sender(2), Sender(3)]
        self.lost_snapshots = False
        """Then the producer state comes from the log only, until the next segment starts."""
        assert self.bench.log.end_offset == 0

    # -- writing -------------------------------------------------------------------------------

    def _append(
        self,
        pairs: list[tuple[bytes, bytes | None]],
        sender: Sender | None,
        codec: Compression,
        *,
        transactional: bool = False,
    ) -> Batch:
        now_ms, base = self.bench.now_ms, self.bench.log.end_offset
        producer = (sender.producer_id, 0, sender.sequence) if sender else (-1, -1, -1)
        self.bench.append(
            keyed(
                pairs, timestamp=now_ms, producer=producer, transactional=transactional, codec=codec
            )
        )
        if sender is not None:
            sender.sequence += len(pairs)
        records = [
            Seen(base + number, key, value, now_ms + number)
            for number, (key, value) in enumerate(pairs)
        ]
        batch = Batch(records, base + len(pairs), producer[0])
        self.model.append(batch)
        return batch

    @rule(
        pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=4),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4]),
        idempotent=st.booleans(),
    )
    def append(
        self, pairs: list[tuple[bytes, bytes | None]], codec: Compression, idempotent: bool
    ) -> None:
        self._append(pairs, self.idempotent if idempotent else None, codec)

    @rule(
        pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=3),
        number=st.integers(0, 1),
    )
    def append_in_a_transaction(self, pairs: list[tuple[bytes, bytes | None]], number: int) -> None:
        sender = self.transactional[number]
        batch = self._append(pairs, sender, Compression.NONE, transactional=True)
        batch.is_open = True
        sender.batches.append(batch)

    @rule(number=st.integers(0, 1), commit=st.booleans())
    def end_a_transaction(self, number: int, commit: bool) -> None:
        sender = self.transactional[number]
        marker = MarkerType.COMMIT if commit else MarkerType.ABORT
        self.bench.append_marker(sender.producer_id, 0, marker)
        for batch in sender.batches:
            batch.is_open, batch.is_aborted = False, not commit
        sender.batches.clear()

    @rule()
    def roll(self) -> None:
        if self.bench.log.active.size_bytes:
            self.bench.log.roll(self.bench.now_ms)
            self.lost_snapshots = False

    @rule(ms=st.integers(0, 2 * DELETE_RETENTION_MS))
    def time_passes(self, ms: int) -> None:
        self.bench.now_ms += ms

    # -- removing ------------------------------------------------------------------------------

    @rule(map_bytes=st.sampled_from([1 << 20, 1 << 20, 24 * 4]))
    def compact(self, map_bytes: int) -> None:
        first_open = min((b.records[0].offset for b in self.model if b.is_open), default=2**62)
        done = compact(self.bench, map_bytes=map_bytes)
        if done is None:
            return
        assert done.end <= min(first_open, self.bench.log.active.base_offset)
        assert done.end > done.first_dirty
        self._survive(done.end)

    def _survive(self, end: int) -> None:
        """What a cleaning up to `end` leaves, according to the model."""
        now_ms = self.bench.now_ms
        cleaned = [batch for batch in self.model if batch.end <= end]
        newest: dict[bytes | None, int] = {}
        for batch in cleaned:
            if not batch.is_aborted:
                newest.update((record.key, record.offset) for record in batch.records)
        # A batch of an aborted transaction is removed anywhere in the cleaned segments.
        looked_at = max(
            (
                following.base_offset
                for segment, following in pairwise(self.bench.log.segments())
                if segment.base_offset < end
            ),
            default=end,
        )
        for batch in self.model:
            if batch.is_aborted and batch.end <= looked_at:
                batch.records.clear()
        for batch in cleaned:
            is_over = batch.horizon_ms is not None and batch.horizon_ms <= now_ms
            batch.records = [
                record
                for record in batch.records
                if record.offset == newest[record.key] and not (record.value is None and is_over)
            ]
            if batch.horizon_ms is None and any(r.value is None for r in batch.records):
                batch.horizon_ms = now_ms + DELETE_RETENTION_MS

    @precondition(lambda self: not self.lost_snapshots)
    @rule(bytes_max=st.integers(0, 4_000))
    def retain(self, bytes_max: int) -> None:
        log = self.bench.log
        log.config = TopicConfig(retention_bytes=bytes_max, retention_ms=-1)
        open_from = log.producers.first_open_txn_offset
        stable = log.end_offset if open_from is None else open_from
        for path in apply_retention(log, stable, self.bench.now_ms):
            self.bench.disk.remove(path)
        log.config = CONFIG
        for batch in self.model:
            batch.records = [r for r in batch.records if r.offset >= log.start_offset]

    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        log = self.bench.log
        open_from = log.producers.first_open_txn_offset
        stable = log.end_offset if open_from is None else open_from
        offset = Offset(log.start_offset + int((stable - log.start_offset) * where))
        log.advance_start(offset)
        for batch in self.model:
            batch.records = [r for r in batch.records if r.offset >= offset]

    # -- restarts ------------------------------------------------------------------------------

    @rule(how=st.sampled_from(["reopen", "crash", "lose power", "forget snapshots"]))
    def start_again(self, how: str) -> None:
        bench = self.bench
        bench.sync()
        cleaned_to, producers = bench.log.cleaned_to, producers_of(bench.log)
        if how == "reopen":
            bench.reopen()
        elif how == "crash":
            bench.crash()
        elif how == "lose power" and bench.log.segments()[0].base_offset == 0:
            # Without snapshots nothing is known about records that retention removed.
            bench.lose_power()
            self.lost_snapshots = True
        else:
            self._crash_without_snapshots()
        bench.log.cleaned_to = cleaned_to
        assert producers_of(bench.log) == producers

    def _crash_without_snapshots(self) -> None:
        """A producer's state is also in its last batch, unless retention removed it."""
        bench = self.bench
        if bench.log.segments()[0].base_offset == 0:
            self.lost_snapshots = True
            for name in bench.names():
                if name.endswith(names.SNAPSHOT):
                    bench.disk.remove(f"{bench.dir}/{name}")
        bench.crash()

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def survivors_equal_the_models(self) -> None:
        expected = [record for batch in self.model for record in batch.records]
        assert seen_in(self.bench.log) == expected

    @invariant()
    def open_transactions_hold_the_last_stable_offset(self) -> None:
        first = min(
            (b.records[0].offset for b in self.model if b.is_open and b.records), default=None
        )
        assert self.bench.log.producers.first_open_txn_offset == first

    @invariant()
    def every_decided_transaction_has_its_marker(self) -> None:
        """Without its marker, a recovery would consider the transaction open."""
        ends = [(h.producer_id, h.base_offset) for h in markers_in(self.bench.log)]
        open_ids = {sender.producer_id for sender in self.transactional if sender.batches}
        for _, header in batches_in(self.bench.log):
            if header.is_transactional and not header.is_control:
                later = [at for pid, at in ends if pid == header.producer_id]
                decided = any(at > header.base_offset for at in later)
                assert decided or header.producer_id in open_ids

    @invariant()
    def aborted_records_are_in_the_transaction_index(self) -> None:
        log = self.bench.log
        aborted = log.aborted_between(log.start_offset, log.end_offset)
        for batch in self.model:
            if batch.is_aborted and batch.records:
                offset = batch.records[0].offset
                assert any(
                    t.producer_id == batch.producer_id and t.first_offset <= offset <= t.last_offset
                    for t in aborted
                )

    @invariant()
    def segments_adjoin(self) -> None:
        for segment, following in pairwise(self.bench.log.segments()):
            assert segment.next_offset == following.base_offset

    @precondition(lambda self: self.idempotent.sequence > 0)
    @rule()
    def retry(self) -> None:
        """A producer that is still known continues with its next sequence."""
        log = self.bench.log
        last = log.producers.get(self.idempotent.producer_id)  # type: ignore[arg-type]
        assert last is not None
        assert last.last_sequence == self.idempotent.sequence - 1


CompactionMachine.TestCase.settings = settings(stateful_step_count=40)
TestCompaction = CompactionMachine.TestCase
