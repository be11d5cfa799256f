"""Tracks transactions while compaction reads through a log.

A pure state machine: batches enter at `on_batch`, markers at `on_marker`, both in log order.
Invariant: a marker is removable only if this pass has found no batch of its transaction before it.
"""

from collections.abc import Iterable

from suwi.log.txn_index import AbortedTxn
from suwi.records.batch import BatchHeader
from suwi.records.record import Marker, MarkerType


class CleanedTransactions:
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
