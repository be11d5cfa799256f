"""What compaction keeps of a batch: all of it, some of its records, only its header, or nothing.

Batches enter in log order at `filter`; `CleanedTransactions` knows which of them were aborted.
Hazard 18: a producer's last batch keeps its sequence, and transaction markers are not keyed
records.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from typing_extensions import Buffer

from suwi.log.offset_map import OffsetMap
from suwi.log.txn_index import AbortedTxn
from suwi.model.ids import NO_OFFSET, Offset, ProducerEpoch
from suwi.records.batch import BatchHeader
from suwi.records.record import INT64_MAX, Marker, MarkerType, Span, read_marker, scan_keys
from suwi.records.retain import empty_batch, keep_records, stored_section


class CleanedTransactions:
    """Tracks transactions while compaction reads through a log: batches enter at `on_batch`,
    markers at `on_marker`, both in log order.
    Invariant: a marker is removable only if no batch of its transaction was found before it.
    """

    __slots__ = ("_aborted", "_committed", "_still_has_batches", "_upcoming", "kept")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._upcoming = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        self._still_has_batches: set[int] = set()
        """Producers of an aborted transaction that still has batches in the log."""
        self._committed: set[int] = set()
        self.kept: list[AbortedTxn] = []
        """Aborted transactions whose batches or marker are still in the log, in marker order."""

    def on_batch(self, header: BatchHeader) -> bool:
        """Whether the batch is part of an aborted transaction: then its records are removable."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._still_has_batches.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_marker(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Whether the marker is removable: no batch of its transaction was found."""
        self._begin_up_to(header.last_offset)
        if marker is None:
            # An earlier pass emptied the batch, or a later version wrote an unknown marker type.
            return header.record_count == 0
        producer_id = header.producer_id
        if marker.type is MarkerType.COMMIT:
            had_batches = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_batches
        txn = self._aborted.pop(producer_id, None)
        if txn is None or producer_id not in self._still_has_batches:
            return True
        self._still_has_batches.discard(producer_id)
        self.kept.append(txn)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            txn = self._upcoming.pop()
            self._aborted.setdefault(txn.producer_id, txn)


class LastBatch(NamedTuple):
    """The position of a producer's newest sequence in the log."""

    last_offset: Offset
    """NO_OFFSET if only a transaction marker of the producer is known."""
    epoch: ProducerEpoch


class BatchFilter(NamedTuple):
    offset_map: OffsetMap
    mapped_end: Offset
    """Records from here on are not in the map and are all kept."""
    transactions: CleanedTransactions
    last_batches: Mapping[int, LastBatch]
    now_ms: int
    delete_retention_ms: int

    def filter(
        self, batch: memoryview, header: BatchHeader, *, keep_empty: bool = False
    ) -> Buffer | None:
        """The batch to keep: the same object if nothing changed, None if nothing is kept.

        `keep_empty`: the header is kept even without records.
        """
        keep_empty = keep_empty or self._is_last_of_producer(header)
        if header.is_control:
            return self._filter_marker(batch, header, keep_empty)
        if self.transactions.on_batch(header):
            return _emptied(batch, header) if keep_empty else None
        if header.base_offset >= self.mapped_end:
            return batch
        return self._filter_records(batch, header, keep_empty)

    def _filter_marker(
        self, batch: memoryview, header: BatchHeader, keep_empty: bool
    ) -> Buffer | None:
        is_removable = self.transactions.on_marker(header, read_marker(batch, header))
        if not is_removable:
            return batch
        if header.record_count == 0 or self._is_past_horizon(header):
            return _emptied(batch, header) if keep_empty else None
        if header.has_delete_horizon:
            return batch
        section = stored_section(batch, header)
        return self._stamped(header, section, scan_keys(section, header))

    def _filter_records(
        self, batch: memoryview, header: BatchHeader, keep_empty: bool
    ) -> Buffer | None:
        section = stored_section(batch, header)
        spans = scan_keys(section, header)
        kept = self.offset_map.newest(spans, header.base_offset)
        has_tombstones = not all(span[4] for span in kept)
        if has_tombstones and self._is_past_horizon(header):
            kept = [span for span in kept if span[4]]
        if not kept:
            return _emptied(batch, header) if keep_empty else None
        if has_tombstones and not header.has_delete_horizon:
            return self._stamped(header, section, kept)
        if len(kept) == len(spans):
            return batch
        return keep_records(header, section, kept)

    def _stamped(self, header: BatchHeader, section: bytes, kept: list[Span]) -> Buffer:
        """Set the delete horizon (KIP-534): delete.retention.ms starts with this first cleaning."""
        horizon_ms = min(self.now_ms + self.delete_retention_ms, INT64_MAX)
        return keep_records(header, section, kept, delete_horizon_ms=horizon_ms)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self.now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.last_batches.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset != NO_OFFSET:
            return header.last_offset == last.last_offset
        # Only the epoch of the producer's marker is known; it fences older epochs.
        return header.is_control and header.producer_epoch == last.epoch


def _emptied(batch: memoryview, header: BatchHeader) -> Buffer:
    return batch if header.record_count == 0 else empty_batch(header)
