"""What a coordinator's pure machine decides: records to append, replies to send, timers to arm.

A request that cannot be answered yet is kept by its `Token`; some later decision carries the reply
for it. State changes that must survive go through the records alone (`replay`).
"""

import heapq
import struct
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from suwi.coordinator.record import CoordinatorRecord, LongValue, encode_in_slices
from suwi.env.slices import run_to_end
from suwi.replica.partition_transactions import VerificationGuard

T = TypeVar("T")

Slices: TypeAlias = Iterator[None]
"""Work in slices: whoever drives it lets others come in between."""

Steps: TypeAlias = Generator[None, None, T]
"""Work in slices that has a result."""

_SORTED_AT_ONCE: Final = 4_000
_STEPS_PER_SLICE: Final = 5_000
"""About five milliseconds if each takes one microsecond."""


class Pace:
    """Says when a slice is over."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _STEPS_PER_SLICE

    def is_over(self, steps: int) -> bool:
        self._left -= steps
        if self._left > 0:
            return False
        self._left = _STEPS_PER_SLICE
        return True


TimerKey: TypeAlias = Hashable
"""What a timer is for; arming one again replaces it."""


class PausableTimerKey(tuple[str, ...]):
    """Of a timer that waits for a request of a client: it stands still while the coordinator
    refuses such requests. Equal to the plain tuple."""

    __slots__ = ()


RECORDS_PER_SLICE: Final = 256
"""An event with more records is large."""

RECORD_OVERHEAD_BYTES: Final = 32
"""Lengths, deltas and attributes of a record, at most."""


class Token:
    """Stands for a request that waits for its reply. Compared by identity."""

    __slots__ = ()

    def resolve(self, response: Any) -> None:
        """Here is the reply."""

    def fail(self, error: Exception) -> None:
        """There will be no reply of the machine; this is why."""


class TransactionalProducer(NamedTuple):
    """Whose open transaction the records of a decision belong to."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None
    """That of its verification; None if the transaction was open already."""


@dataclass(slots=True)
class Decision:
    """Filled by a machine while it handles one event, and carried out by the runtime."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Token, Any]] = field(default_factory=list)
    timers: dict[TimerKey, int | None] = field(default_factory=dict)
    """By key the deadline in milliseconds; None cancels."""
    notices: list[Any] = field(default_factory=list)
    """What people and metrics are told, for example of a rebalance."""
    notices_when_committed: list[Any] = field(default_factory=list)
    """Told once the records are committed: what others do because of them."""
    is_atomic: bool = True
    """Whether all of the records must be in one batch. If so, they are refused if they are too many
    for it."""
    producer: TransactionalProducer | None = None
    """If set, the records are appended at once, as one transactional batch of this producer."""
    batch_bytes_max: int = 1 << 20

    @property
    def is_large(self) -> bool:
        """Whether it takes several turns of the loop; its shard is closed meanwhile."""
        return len(self.records) > RECORDS_PER_SLICE or any(
            isinstance(value, LongValue) and value.is_long for _, value in self.records
        )

    def append(self, key: Any, value: Any | None) -> None:
        self.records.append(CoordinatorRecord(key, value))

    def has_room_for(self, key: Any, value: Any) -> bool:
        """Whether that record alone can be appended."""
        return run_to_end(self.finding_room_for(key, value))

    def finding_room_for(self, key: Any, value: Any) -> Steps[bool]:
        """As `has_room_for`, in slices."""
        size_bytes = yield from _size_bytes(CoordinatorRecord(key, value))
        return size_bytes <= self.batch_bytes_max

    def take_if_it_fits(self, part: "Decision") -> Steps[bool]:
        """Add a part that is whole or nothing, if all records can be in one batch."""
        size_bytes = 0
        try:
            for record in (*self.records, *part.records):
                size_bytes += yield from _size_bytes(record)
        except struct.error:
            return False  # A string that is too long for a record.
        if size_bytes > self.batch_bytes_max:
            return False
        self.records += part.records
        self.replies += part.replies
        self.timers |= part.timers
        self.notices += part.notices
        return True

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append((token, response))

    def arm(self, key: TimerKey, deadline_ms: int) -> None:
        self.timers[key] = deadline_ms

    def cancel(self, key: TimerKey) -> None:
        self.timers[key] = None


def sort(items: Iterable[T], key: Callable[[T], Any], pace: Pace) -> Steps[list[T]]:
    """Sorts parts and merges them: one sort of all cannot be interrupted."""
    rest, parts = iter(items), []
    while part := sorted(islice(rest, _SORTED_AT_ONCE), key=key):
        parts.append(part)
        if pace.is_over(len(part)):
            yield
    if len(parts) <= 1:
        return parts[0] if parts else []
    ordered = []
    for item in heapq.merge(*parts, key=key):
        ordered.append(item)
        if pace.is_over(2):
            yield
    return ordered


def rest_of(slices: Slices) -> Slices | None:
    """What is left after the first slice, if there is more."""
    for _ in slices:
        return slices
    return None


def _size_bytes(record: CoordinatorRecord) -> Steps[int]:
    key, value = yield from encode_in_slices(record)
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
