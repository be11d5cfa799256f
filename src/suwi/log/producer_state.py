"""The producer state of a partition: last batches, sequences and open transactions.

A pure state machine. `check` validates a batch before its append, `check_marker` a marker; `replay`
applies a batch that is in the log: leaders, followers and recovery share this path.
Invariant: the state is a function of the batches below `end_offset`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from suwi.model.ids import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from suwi.records.batch import SEQUENCE_MAX, TRANSACTIONAL_BIT, BatchHeader
from suwi.records.record import Marker, MarkerType

REMEMBERED_BATCHES = 5  # Kafka's limit of requests in flight for an idempotent producer
ENDED_TXNS_MAX = 10_000


class ProducedBatch(NamedTuple):
    """A batch in the log, with what is needed to recognise a retry of it."""

    first_sequence: int
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> Offset:
        return Offset(self.last_offset - self.offset_delta)


@dataclass(slots=True)
class Producer:
    producer_id: ProducerId
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    batches: deque[ProducedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    txn_first_offset: Offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def has_open_txn(self) -> bool:
        return self.txn_first_offset != NO_OFFSET

    def has_open_txn_in(self, epoch: int) -> bool:
        return self.txn_first_offset != NO_OFFSET and self.epoch == epoch


class _EndedTxn(NamedTuple):
    first_offset: Offset
    marker_offset: Offset


class ProducerStates:
    __slots__ = ("_ended_txns", "_open_txns", "_producers", "end_offset", "has_unstable_txns")

    def __init__(
        self, producers: list[Producer] | None = None, end_offset: Offset = Offset(0)
    ) -> None:
        self.end_offset = end_offset
        self._producers = {producer.producer_id: producer for producer in producers or []}
        self._open_txns = {p.producer_id: p for p in producers or [] if p.has_open_txn}
        self._ended_txns: deque[_EndedTxn] | None = None
        """Those whose marker may not be committed yet, in the order of markers and first offsets:
        one that began before earlier ended ones stands for them too. None if there are none."""
        self.has_unstable_txns = bool(self._open_txns)
        """False if no transaction is open or ended without a committed marker: for fast access."""

    def __len__(self) -> int:
        return len(self._producers)

    def all(self) -> list[Producer]:
        return list(self._producers.values())

    def last(self, count: int) -> list[Producer]:
        """Those that came last."""
        return list(islice(reversed(self._producers.values()), count))[::-1]

    def get(self, producer_id: ProducerId) -> Producer | None:
        return self._producers.get(producer_id)

    @property
    def first_open_txn_offset(self) -> Offset | None:
        """The first offset of the oldest open transaction."""
        if not self._open_txns:
            return None
        return min(producer.txn_first_offset for producer in self._open_txns.values())

    def last_stable_offset(self, start: Offset, high_watermark: Offset) -> Offset:
        """Of a log that starts at `start`: below it every transaction has a committed marker."""
        unstable = self.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        # DeleteRecords may have moved the log start offset into an open transaction.
        return min(max(unstable, start), high_watermark)

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """The first offset of the oldest transaction without a committed marker (hazard 14)."""
        self.forget_ended_txns(high_watermark)
        first_open = self.first_open_txn_offset
        if self._ended_txns is None:
            return first_open
        first_ended = self._ended_txns[0].first_offset
        return first_ended if first_open is None else min(first_open, first_ended)

    def forget_ended_txns(self, high_watermark: Offset) -> None:
        """The markers below `high_watermark` are committed."""
        ended = self._ended_txns
        if ended is None:
            return
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()
        if not ended:
            self._ended_txns = None
            self.has_unstable_txns = bool(self._open_txns)

    def _remember_ended_txn(self, txn: _EndedTxn) -> None:
        ended = self._ended_txns = self._ended_txns or deque()
        while ended and ended[-1].first_offset >= txn.first_offset:
            ended.pop()
        ended.append(txn)
        if len(ended) > ENDED_TXNS_MAX:
            # The two oldest become one, stable only when both are (hazard T18).
            oldest = ended.popleft()
            ended[0] = ended[0]._replace(first_offset=oldest.first_offset)

    @property
    def open_txn_count(self) -> int:
        return len(self._open_txns)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Validate a batch before its append. Returns the original batch if this is a retry.

        Raises InvalidProducerEpoch, OutOfOrderSequence or InvalidTxnState. A producer without state
        may start at any sequence (KIP-360): retention may have removed its earlier records.
        """
        producer = self._producers.get(ProducerId(header.producer_id))
        if producer is None or producer.epoch == NO_PRODUCER_EPOCH:
            return None
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"epoch {header.producer_epoch} of producer {header.producer_id} is older than "
                f"its newest, {producer.epoch}"
            )
        if header.base_sequence < 0:
            return None  # A transaction marker or a transactional offset commit.
        if producer.txn_first_offset != NO_OFFSET and not header.is_transactional:
            raise InvalidTxnState(
                f"producer {header.producer_id} has an open transaction, and the batch is not in it"
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} must start its new epoch "
                    f"{header.producer_epoch} with sequence 0, not {header.base_sequence}"
                )
            return None
        if header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MAX:
            return None
        sent = (header.base_sequence, header.last_sequence)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == sent:
                return batch
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {header.base_sequence} after "
            f"{producer.last_sequence}"
        )

    def check_marker(
        self,
        producer_id: ProducerId,
        epoch: int,
        coordinator_epoch: int,
        *,
        is_strict: bool,
        coordinator_epoch_max: int | None = None,
    ) -> bool:
        """Validate a transaction marker before its append; whether it must be appended.

        `is_strict`: of transaction version 2, whose markers have a greater epoch than the records
        of their transaction (hazard T6). An equal epoch is that of a repeated marker, unless a
        transaction is open: then the marker is that of an earlier one.
        `coordinator_epoch_max`: a greater one, of an earlier marker, was no coordinator's.
        Raises InvalidProducerEpoch or TransactionCoordinatorFenced.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        is_repeated = is_strict and epoch == producer.epoch
        if epoch < producer.epoch or (is_repeated and producer.has_open_txn):
            raise InvalidProducerEpoch(
                f"epoch {epoch} of a marker of producer {producer_id}, its newest is "
                f"{producer.epoch}"
            )
        is_possible = (
            coordinator_epoch_max is None or producer.coordinator_epoch <= coordinator_epoch_max
        )
        if coordinator_epoch < producer.coordinator_epoch and is_possible:
            raise TransactionCoordinatorFenced(
                f"coordinator epoch {coordinator_epoch} of a marker of producer {producer_id} is "
                f"older than {producer.coordinator_epoch}"
            )
        return not is_repeated

    def replay(self, header: BatchHeader, marker: Marker | None = None) -> AbortedTxn | None:
        """Apply the next batch of the log. Returns the aborted transaction if it ends one."""
        self.end_offset = Offset(header.next_offset)
        if header.producer_id < 0:
            return None
        producer = self._producer(header.producer_id)
        producer.last_timestamp = header.max_timestamp
        if header.is_control:
            return self._end_txn(producer, header, marker)
        if header.producer_epoch != producer.epoch:
            producer.epoch = ProducerEpoch(header.producer_epoch)
            producer.batches.clear()
        producer.batches.append(
            ProducedBatch(
                header.base_sequence,
                header.last_sequence,
                Offset(header.last_offset),
                header.last_offset_delta,
                header.max_timestamp,
            )
        )
        if header.is_transactional and not producer.has_open_txn:
            self._begin_txn(producer, Offset(header.base_offset))
        return None

    def replay_all(self, headers: Sequence[BatchHeader]) -> None:
        """Apply the next batches of the log, none of which is a control batch.

        Same result as `replay` for each; batches that would not be remembered are skipped.
        """
        newest: dict[int, deque[BatchHeader]] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            if producer_id in newest:
                newest[producer_id].append(header)
            else:
                newest[producer_id] = deque((header,), maxlen=REMEMBERED_BATCHES)
            if header.attributes & TRANSACTIONAL_BIT:
                producer = self._producer(producer_id)
                if not producer.has_open_txn:
                    self._begin_txn(producer, Offset(header.base_offset))
        for batches in newest.values():
            for header in batches:
                self.replay(header)
        if headers:
            self.end_offset = Offset(headers[-1].next_offset)

    def _producer(self, producer_id: int) -> Producer:
        """The producer with this id, created if there is none."""
        producer = self._producers.get(ProducerId(producer_id))
        if producer is None:
            producer = Producer(ProducerId(producer_id))
            self._producers[producer.producer_id] = producer
        return producer

    def _begin_txn(self, producer: Producer, first_offset: Offset) -> None:
        producer.txn_first_offset = first_offset
        self._open_txns[producer.producer_id] = producer
        self.has_unstable_txns = True

    def _end_txn(
        self, producer: Producer, header: BatchHeader, marker: Marker | None
    ) -> AbortedTxn | None:
        if producer.epoch != header.producer_epoch:
            producer.epoch = ProducerEpoch(header.producer_epoch)
            producer.batches.clear()
        first_offset = producer.txn_first_offset
        producer.txn_first_offset = NO_OFFSET
        if self._open_txns.pop(producer.producer_id, None) is not None:
            self._remember_ended_txn(_EndedTxn(first_offset, Offset(header.base_offset)))
        if marker is None:
            return None
        producer.coordinator_epoch = marker.coordinator_epoch
        if marker.type is MarkerType.COMMIT or first_offset == NO_OFFSET:
            return None
        undecided = self.first_open_txn_offset
        last_offset = Offset(header.last_offset)
        stable = Offset(last_offset + 1) if undecided is None else undecided
        return AbortedTxn(producer.producer_id, first_offset, last_offset, stable)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that were inactive for too long and have no open transaction."""
        for producer in self.all():
            inactive_ms = now_ms - producer.last_timestamp
            if not producer.has_open_txn and inactive_ms >= expiration_ms:
                del self._producers[producer.producer_id]
