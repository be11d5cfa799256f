"""Records that are decided and not appended yet, in pieces that must each be in one batch."""

import struct
from collections.abc import Generator
from typing import NamedTuple

from suwi.coordinator.decision import (
    RECORD_OVERHEAD_BYTES,
    RECORDS_PER_SLICE,
    Decision,
)
from suwi.coordinator.record import Codec, LongValue, encode_in_slices
from suwi.env.slices import run_to_end
from suwi.model.errors import RecordListTooLarge
from suwi.model.ids import NO_OFFSET
from suwi.records.record import Record


class Queued(NamedTuple):
    """The records of one decision, or a part of them."""

    records: list[Record]
    size_bytes: int


def encode(decision: Decision, codec: Codec, now_ms: int) -> list[Queued]:
    """One piece, or several where they need not be together. Raises RecordListTooLarge."""
    return run_to_end(encoding(decision, codec, now_ms, decision.batch_bytes_max))


def encoding(
    decision: Decision, codec: Codec, now_ms: int, atomic_bytes_max: int
) -> Generator[None, None, list[Queued]]:
    """As `encode`, in slices. `atomic_bytes_max`: how large a piece may be that must be whole."""
    bytes_max = atomic_bytes_max if decision.is_atomic else decision.batch_bytes_max
    pieces: list[Queued] = []
    records: list[Record] = []
    size_bytes = 0
    key: bytes
    value: bytes | None
    for number, record in enumerate(decision.records, 1):
        try:
            if isinstance(record.value, LongValue):
                key, value = yield from encode_in_slices(record)
            else:
                key, value = codec.encode(record)
        except struct.error as error:
            raise RecordListTooLarge(f"a string too long for a record: {error}") from error
        record_bytes = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if record_bytes > decision.batch_bytes_max:
            raise RecordListTooLarge(f"a record of {record_bytes} bytes")
        if size_bytes + record_bytes > bytes_max:
            if decision.is_atomic:
                raise RecordListTooLarge(f"{len(decision.records)} records in one batch")
            pieces.append(Queued(records, size_bytes))
            records, size_bytes = [], 0
        records.append(Record(NO_OFFSET, now_ms, key, value))
        size_bytes += record_bytes
        if number % RECORDS_PER_SLICE == 0:
            yield
    pieces.append(Queued(records, size_bytes))
    return pieces


class RecordQueue:
    def __init__(self) -> None:
        self._queued: list[Queued] = []

    def __bool__(self) -> bool:
        return bool(self._queued)

    def __len__(self) -> int:
        return sum(len(queued.records) for queued in self._queued)

    def add(self, pieces: list[Queued]) -> None:
        self._queued += pieces

    def clear(self) -> None:
        self._queued.clear()

    def next_batch(self, bytes_max: int) -> tuple[list[Record], int]:
        """The records of the next batch, and the number of pieces, to be given to `drop`."""
        records: list[Record] = []
        size_bytes = taken = 0
        for queued in self._queued:
            if records and size_bytes + queued.size_bytes > bytes_max:
                break
            records += queued.records
            size_bytes += queued.size_bytes
            taken += 1
        return records, taken

    def drop(self, pieces: int) -> None:
        del self._queued[:pieces]
