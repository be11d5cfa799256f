"""Producers whose batch was refused for storage reasons, and the sequence each must resend first.

`note` records a refusal, `holds_back` checks later batches.

An idempotent producer has up to five batches in flight. On a full disk the first of them fails with
KAFKA_STORAGE_ERROR, and the client resends it. The batches behind it then no longer follow the last
sequence in the log. OUT_OF_ORDER_SEQUENCE_NUMBER would be correct for them, but harmful: a client
treats it as lost records, starts a new producer epoch and resends everything it is not sure of, so
that records are stored twice. Therefore every batch after a storage refusal is refused with a
storage error too, until the producer resends the missing batch:

- The disk may have space again between two of the batches. What counts is that the missing sequence
  is not in the log, not whether this write would succeed.
- A producer without state in the log may start at any sequence (KIP-360): if its first batch was
  refused, its second would be accepted as a start, and the first could never be stored.
- Batches before the missing sequence are not affected: a retry is found among the last batches as
  usual.
- A refusal with NOT_ENOUGH_REPLICAS is noted as well: the ISR may be large enough again for the
  second batch.
- Another replica may have been the leader meanwhile and have stored the missing batch. So the log
  is checked: if it has the missing sequence, or a newer epoch of the producer, the refusal is
  dropped. Hence a leader change needs no action here. A new leader has no refusals and needs none:
  a client starts there with the first batch that has no response.
- A producer that gives up the batch either uses its sequence for the next batch, which then is the
  missing one, or starts a new epoch, which ends the refusal.
- A producer that is really out of order never sends the missing sequence. For one refusal at most
  as many batches are held back as can have been in flight; then the log checks them and returns
  error 45.

Invariant: at most `PRODUCERS_MAX` producers are kept, those with the latest refusals.
"""

from dataclasses import dataclass

from suwi.log.producer_state import REMEMBERED_BATCHES, ProducerStates
from suwi.model.ids import ProducerId
from suwi.records.batch import SEQUENCE_MAX, BatchHeader

PRODUCERS_MAX = 1_000
_BATCHES_HELD_BACK_MAX = REMEMBERED_BATCHES


@dataclass(slots=True)
class _Refusal:
    epoch: int
    sequence: int
    """The base sequence of the refused batch."""
    left: int = _BATCHES_HELD_BACK_MAX
    """How many more batches this refusal holds back."""


class StorageRefusals:
    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def note(self, header: BatchHeader) -> None:
        """A producer's batch was not stored."""
        known = self._by_producer.get(header.producer_id)
        if known is not None and known.epoch == header.producer_epoch:
            if _is_after(header.base_sequence, known.sequence):
                return  # The producer must resend an earlier batch first.
        elif known is None and len(self._by_producer) >= PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        self._by_producer.pop(header.producer_id, None)  # Moves it to the end.
        refusal = _Refusal(header.producer_epoch, header.base_sequence)
        self._by_producer[header.producer_id] = refusal

    def holds_back(self, header: BatchHeader, producers: ProducerStates) -> bool:
        """Whether a batch follows a missing one; `producers` is the producer state of the log."""
        refusal = self._by_producer.get(header.producer_id)
        if refusal is None or header.producer_epoch < refusal.epoch:
            return False
        if header.base_sequence < 0:
            return False  # A transaction marker, or an offset commit of the coordinator.
        if header.producer_epoch > refusal.epoch or _is_over(refusal, header, producers):
            del self._by_producer[header.producer_id]
            return False
        if not _is_after(header.base_sequence, refusal.sequence):
            return False
        refusal.left -= 1
        if refusal.left == 0:
            del self._by_producer[header.producer_id]
        return True


def _is_over(refusal: _Refusal, header: BatchHeader, producers: ProducerStates) -> bool:
    """Whether the log has the missing sequence, or a newer epoch of the producer."""
    producer = producers.get(ProducerId(header.producer_id))
    if producer is None or producer.epoch < refusal.epoch:
        return False
    if producer.epoch > refusal.epoch:
        return True
    return bool(producer.batches) and not _is_after(refusal.sequence, producer.last_sequence)


def _is_after(sequence: int, other: int) -> bool:
    """Whether `sequence` follows `other`; sequences wrap around."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
