"""Selects the visible records of fetched bytes: from the position on, committed, no markers.

`visible_records` returns records, `visible_batches` their batches, for callers that decode in bulk.
Pure functions.
Invariant: the next position is never within a batch that was read completely.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, batches, compute_crc
from suwi.records.compression import Buffer
from suwi.records.record import MarkerType, Record, iter_records, read_marker
from suwi.wire.fetch_response import AbortedTransaction


class Visible(NamedTuple):
    records: list[Record]
    next_offset: Offset


def visible_records(
    data: Buffer, position: Offset, aborted: Sequence[AbortedTransaction] | None = None
) -> Visible:
    """`aborted` are the transactions to skip. Raises `CorruptMessage`, `InvalidRecord`."""
    view = memoryview(data)
    whole = list(batches(view))
    records: list[Record] = []
    for at, header in visible_batches(view, whole, aborted):
        batch = view[at : at + header.size_bytes]
        records += (each for each in iter_records(batch, header) if each.offset >= position)
    return Visible(records, position_after(whole, position))


def visible_batches(
    data: memoryview,
    whole: Iterable[tuple[int, BatchHeader]],
    aborted: Sequence[AbortedTransaction] | None = None,
    *,
    check_crcs: bool = True,
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches of `data` with visible records.

    Raises `CorruptMessage`, `InvalidRecord`.
    """
    begins = sorted(aborted or (), key=lambda transaction: transaction.first_offset)
    aborted_producers: set[int] = set()
    """Producers whose records up to their next marker are aborted."""
    for at, header in whole:
        if check_crcs and compute_crc(data, at, header.size_bytes) != header.crc:
            raise CorruptMessage(f"the batch at offset {header.base_offset} has a wrong checksum")
        while begins and begins[0].first_offset <= header.last_offset:
            aborted_producers.add(begins.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(data[at : at + header.size_bytes], header)
            if marker is not None and marker.type is MarkerType.ABORT:
                aborted_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted_producers):
            yield at, header


def position_after(whole: Sequence[tuple[int, BatchHeader]], position: Offset) -> Offset:
    return max(position, Offset(whole[-1][1].next_offset)) if whole else position
