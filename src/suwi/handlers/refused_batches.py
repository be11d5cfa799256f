"""Batches of idempotent producers that were answered with an error, by partition and sequence.

Every error that Produce answers enters at `note_error` or, after the append, at `note`; `check`
runs before each append.

An idempotent producer has up to five batches in flight. If the first of them is refused, the client
sends it again, and the batches behind it no longer follow the last sequence in the log.
OUT_OF_ORDER_SEQUENCE_NUMBER would be correct for them, but harmful: librdkafka takes a new producer
epoch and sends everything again that it is not sure of. A batch that was appended, but answered
with NOT_ENOUGH_REPLICAS_AFTER_APPEND, is then stored twice (hazard 23). Therefore a batch that is
not the next one of the log is refused with a retriable error as long as an earlier one of its
producer was refused here and is not in the log:

- Any reason counts. The condition that caused the refusal (a full disk, too few replicas in sync,
  another leader, a topic that was not known yet) may be over when the next batch arrives.
- Only the log says whether a batch is missing. One that was appended and then answered with an
  error, or that another leader has stored, is not missing; one that was appended and truncated is.
- A producer without state in the log may start at any sequence (KIP-360): if its first batch was
  refused, its second would be accepted as a start, and the first could never be stored.
- A batch that is the next one of the log, and a retry of one in the log, are never held back. A
  producer that gives up a batch uses its sequences for the following ones.
- A new epoch of the producer ends everything that is known of the earlier one.
- A producer that is really out of order never sends the missing batch. After a refusal at most as
  many batches are held back as can have been in flight; then the log returns its error.
- A new leader and a broker that was restarted know no refusals and need none: a client starts there
  with the first batch that has no response.

Invariant: at most `PRODUCERS_MAX` producers are kept, those with the latest refusals, and of each
the highest `REMEMBERED_BATCHES` batches: no more are in flight, so one below them has been stored,
perhaps by another leader, or was given up.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.log.producer_state import REMEMBERED_BATCHES, ProducerStates
from suwi.model.errors import BrokerError, CorruptMessage
from suwi.model.ids import ProducerId
from suwi.records.batch import SEQUENCE_MAX, BatchHeader, read_header

PRODUCERS_MAX: Final = 10_000
"""Of all partitions: a producer counts once for each of them."""
KEPT_S: Final = 600.0
"""Clients resend a batch after seconds at most, and each refusal counts anew."""
_BATCHES_HELD_BACK_MAX: Final = REMEMBERED_BATCHES

_OF_THE_PRODUCER: Final = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
        ErrorCode.transaction_abortable,
        ErrorCode.transactional_id_authorization_failed,
    }
)
"""The producer does not resend a batch with these errors, and its next one gets its own."""

Place: TypeAlias = tuple[str | UUID, int]
"""A partition as requests name it: by the name or id of its topic, which may be unknown here."""


class FollowsRefused(BrokerError):
    """The producer must resend an earlier batch first. Clients retry it."""

    code = ErrorCode.kafka_storage_error


class _Sequences(NamedTuple):
    """Of one batch."""

    first: int
    last: int


@dataclass(slots=True)
class _Refusals:
    """Of one epoch of a producer in one partition."""

    epoch: int
    noted_s: float
    batches: list[_Sequences] = field(default_factory=list)
    """In order of their sequences; one that is in the log by now is removed by the next check."""
    left: int = _BATCHES_HELD_BACK_MAX
    """How many more batches are held back."""

    def add(self, header: BatchHeader) -> None:
        sequences = _Sequences(header.base_sequence, header.last_sequence)
        at = len(self.batches)
        while at > 0 and _is_after(self.batches[at - 1].first, sequences.first):
            at -= 1
        if at == 0 or self.batches[at - 1].first != sequences.first:
            self.batches.insert(at, sequences)
            del self.batches[:-REMEMBERED_BATCHES]


class RefusedBatches:
    __slots__ = ("by_producer",)

    def __init__(self) -> None:
        self.by_producer: dict[tuple[Place, int], _Refusals] = {}

    def __len__(self) -> int:
        return len(self.by_producer)

    def note_error(
        self, place: Place, batch: memoryview | None, error: Exception, now_s: float
    ) -> None:
        """A batch was not appended."""
        if isinstance(error, FollowsRefused):
            return
        if isinstance(error, BrokerError) and error.code in _OF_THE_PRODUCER:
            return
        with suppress(CorruptMessage):
            self.note(place, read_header(batch or b""), now_s)

    def note(self, place: Place, header: BatchHeader, now_s: float) -> None:
        """A batch was answered with an error. It may be in the log all the same."""
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        key = place, header.producer_id
        known = self.by_producer.pop(key, None)  # Moves it to the end.
        if known is None or known.epoch < header.producer_epoch:
            if len(self.by_producer) >= PRODUCERS_MAX:
                del self.by_producer[next(iter(self.by_producer))]
            known = _Refusals(header.producer_epoch, now_s)
        self.by_producer[key] = known
        if known.epoch == header.producer_epoch:
            known.noted_s, known.left = now_s, _BATCHES_HELD_BACK_MAX
            known.add(header)

    def may_hold_back(self, place: Place, header: BatchHeader) -> bool:
        """Whether `check` is needed; usually not."""
        return (place, header.producer_id) in self.by_producer and header.base_sequence >= 0

    def check(
        self, place: Place, header: BatchHeader, now_s: float, producers: ProducerStates
    ) -> None:
        """Raises FollowsRefused if a batch must wait for an earlier one that is missing.

        `producers` is the producer state of the log that the batch is about to be appended to.
        """
        key = place, header.producer_id
        refusals = self.by_producer.get(key)
        if refusals is None or header.producer_epoch < refusals.epoch:
            return
        _forget_stored(refusals, header, producers)
        if (
            header.producer_epoch > refusals.epoch
            or not refusals.batches
            or refusals.left == 0
            or now_s - refusals.noted_s > KEPT_S
        ):
            del self.by_producer[key]
            return
        first = refusals.batches[0].first
        if _is_next(header, producers) or not _is_after(header.base_sequence, first):
            return
        refusals.left -= 1
        refusals.add(header)
        raise FollowsRefused(
            f"producer {header.producer_id} must first resend the batch with sequence {first}, "
            "which was refused and is not in the log"
        )


def _forget_stored(refusals: _Refusals, header: BatchHeader, producers: ProducerStates) -> None:
    """Remove what the log has: by its sequence, or because it has a newer epoch."""
    producer = producers.get(ProducerId(header.producer_id))
    if producer is None or producer.epoch < refusals.epoch:
        return
    if producer.epoch > refusals.epoch:
        refusals.batches.clear()
    elif producer.batches:
        last = producer.last_sequence
        refusals.batches = [batch for batch in refusals.batches if _is_after(batch.last, last)]


def _is_next(header: BatchHeader, producers: ProducerStates) -> bool:
    """Whether the batch directly follows the last one of its producer in the log."""
    producer = producers.get(ProducerId(header.producer_id))
    if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
        return False
    return header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MAX


def _is_after(sequence: int, other: int) -> bool:
    """Whether `sequence` follows `other`; sequences wrap around."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
