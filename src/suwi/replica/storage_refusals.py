"""Producers whose batch was refused for storage, and at which sequence each has to go on.

`note` takes in a refusal, `holds_back` judges what comes after it.

An idempotent producer has up to five batches under way. Where the disk takes no more, the first of
them is refused with KAFKA_STORAGE_ERROR, which clients answer by sending it again. Those behind it
then no longer follow on what the log holds. OUT_OF_ORDER_SEQUENCE_NUMBER would be true of them, and
harmful: a client takes it for lost records, begins a new producer epoch and sends everything again
that it is not sure of, so that records which are stored already are stored twice. So whatever
follows a refusal for storage is refused for storage, too, until the producer has gone back to the
batch that is missing:

- The disk may have room again between two of the batches. What counts is that the missing sequence
  is not in the log, not whether this write would work.
- A producer that the log does not know may start anywhere (KIP-360): if its first batch was refused
  its second would be taken for a start, and the first could never be stored.
- What lies before the missing sequence is no concern of this: a retry is found among the last
  batches, as ever.
- A refusal with NOT_ENOUGH_REPLICAS is noted as well: there may be enough of them again for the
  second batch, though the first was refused.
- Another replica may have led meanwhile and have taken the missing batch. So the log is asked:
  where it holds the missing sequence, or a newer epoch of the producer, the refusal is history.
  Hence nothing needs to be done when the leader changes. A new leader knows of no refusal, and need
  not: a client that turns to it begins with the first batch that it has no answer for.
- A producer that gives the batch up either uses its sequence for the next one, which is what was
  missing, or begins a new epoch, which ends the refusal.
- A producer that is really out of order never sends the missing sequence. No more batches than can
  have been under way are held back for one refusal; then the log judges, with its error 45.

Invariant: at most `PRODUCERS_MAX` are remembered, those with the latest refusals.
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
    """The first of the batch that was refused."""
    left: int = _BATCHES_HELD_BACK_MAX
    """How many more batches are held back because of it."""


class StorageRefusals:
    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def note(self, header: BatchHeader) -> None:
        """A producer's batch could not be stored."""
        known = self._by_producer.get(header.producer_id)
        if known is not None and known.epoch == header.producer_epoch:
            if _is_after(header.base_sequence, known.sequence):
                return  # It has to go back further than to this one.
        elif known is None and len(self._by_producer) >= PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        self._by_producer.pop(header.producer_id, None)  # The newest is the last.
        refusal = _Refusal(header.producer_epoch, header.base_sequence)
        self._by_producer[header.producer_id] = refusal

    def holds_back(self, header: BatchHeader, producers: ProducerStates) -> bool:
        """Whether a batch follows one that is missing; `producers` are those of the log."""
        refusal = self._by_producer.get(header.producer_id)
        if refusal is None or header.producer_epoch < refusal.epoch:
            return False
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
    """Whether the log holds what was missing, or the producer has begun a new epoch in it."""
    producer = producers.get(ProducerId(header.producer_id))
    if producer is None or producer.epoch < refusal.epoch:
        return False
    if producer.epoch > refusal.epoch:
        return True
    return bool(producer.batches) and not _is_after(refusal.sequence, producer.last_sequence)


def _is_after(sequence: int, other: int) -> bool:
    """Sequences go round: whichever way is shorter."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
