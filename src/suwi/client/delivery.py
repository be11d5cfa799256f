"""A batch that is being sent, and the outcome of each record in it."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from suwi.model.ids import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition
from suwi.records.record import Record

_RECORD_OVERHEAD_BYTES = 16


class Delivered(NamedTuple):
    """The position of a delivered record."""

    partition: TopicPartition
    offset: Offset
    """NO_OFFSET if the broker did not report it: with acks=0."""
    timestamp: int


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    partition: TopicPartition
    deadline_s: float
    """When the batch fails if it has not been delivered."""
    records: list[Record] = field(default_factory=list)
    """Empty once the batch is done."""
    size_bytes: int = 0
    is_complete: bool = False
    """Takes no more records: it is full or has been sent."""
    encoded: bytearray | None = None
    may_be_stored: bool = False
    """An attempt without a response may have been stored: only the same bytes may be sent again."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    base_offset: int = NO_OFFSET
    timestamps: list[int] = field(default_factory=list)
    """Set when the batch is delivered."""
    halves: "tuple[OutgoingBatch, OutgoingBatch] | None" = None
    """The batches it was split into after it was refused."""
    _middle: int = 0

    def add(self, record: Record, size_bytes: int) -> "Delivery":
        self.records.append(record)
        self.size_bytes += size_bytes
        return Delivery(self, len(self.records) - 1)

    def finish(self, base_offset: int, append_time_ms: int) -> None:
        self.base_offset = base_offset
        stamped = append_time_ms != NO_TIMESTAMP
        self.timestamps = [append_time_ms if stamped else r.timestamp for r in self.records]
        self.end()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.end()

    def split(self) -> "tuple[OutgoingBatch, OutgoingBatch]":
        """Two batches with half of the records each, to be sent instead."""
        middle = len(self.records) // 2
        first, second = self.records[:middle], self.records[middle:]
        self.halves = (
            OutgoingBatch(self.partition, self.deadline_s, first, is_complete=True),
            OutgoingBatch(self.partition, self.deadline_s, second, is_complete=True),
        )
        self._middle = middle
        return self.halves

    def outcome(self, number: int) -> "Delivered":
        """The outcome of a record. Raises the error if it was not delivered."""
        if self.halves is not None:
            first, second = self.halves
            is_first = number < self._middle
            return first.outcome(number) if is_first else second.outcome(number - self._middle)
        if self.error is not None:
            raise self.error
        offset = self.base_offset + number if self.base_offset >= 0 else NO_OFFSET
        return Delivered(self.partition, Offset(offset), self.timestamps[number])

    def end(self) -> None:
        """The batch is done: delivered, failed, or both halves are done."""
        self.encoded = None
        self.records = []
        self.done.set()


def record_bytes(record: Record) -> int:
    """The approximate size of a record in a batch."""
    size_bytes = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    return size_bytes + sum(len(name) + len(value or b"") + 4 for name, value in record.headers)


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """Await it for the position of the record; raises the error if it was not delivered."""

    _batch: OutgoingBatch
    _number: int

    @property
    def is_done(self) -> bool:
        return self._batch.done.is_set()

    @property
    def partition(self) -> TopicPartition:
        return self._batch.partition

    async def wait(self) -> None:
        """Return when the record is delivered or has failed."""
        await self._batch.done.wait()

    def __await__(self) -> Generator[Any, None, Delivered]:
        if not self._batch.done.is_set():
            yield from self._batch.done.wait().__await__()
        return self.result()

    def result(self) -> Delivered:
        """The outcome, once the batch is done."""
        assert self._batch.done.is_set()
        return self._batch.outcome(self._number)
