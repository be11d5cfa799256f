"""A request to a coordinator (`Call`), and the event in which a machine decides it (`Event`).

The methods of a machine take what was asked and the event, and add to it: records to append,
replies to send, timers to arm. A call that cannot be answered yet is kept by the machine; a later
event carries its reply. State changes that must survive a restart are made by the records alone.
"""

import asyncio
import struct
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from suwi.coordinator.record import CoordinatorRecord, LongValue, RecordFacts, encode_in_slices
from suwi.coordinator.topics import NO_TOPICS, Topics
from suwi.env.slices import Slices, run_to_end
from suwi.records.record import Marker
from suwi.replica.partition_transactions import VerificationGuard

M = TypeVar("M", bound="Machine")
Asked = TypeVar("Asked")

TimerKey: TypeAlias = Hashable
"""What a timer is for; arming one again replaces it."""

RECORDS_PER_SLICE: Final = 256
"""An event with more records is large."""

RECORD_OVERHEAD_BYTES: Final = 32
"""Lengths, deltas and attributes of a record, at most."""


class PausableTimerKey(tuple[str, ...]):
    """The key of a timer that waits for a request of a client. The timer stands still while the
    coordinator refuses such requests. Equal to the plain tuple."""

    __slots__ = ()


class Call(Generic[M]):
    """A request while a shard has it: what was asked, which method of the machine decides it, and
    the result. It gets exactly one response or one error, and tells one callback or the coroutine
    that awaits it. Compared by identity."""

    __slots__ = (
        "_decide",
        "_tell",
        "asked",
        "error",
        "is_done",
        "key",
        "prolongs",
        "response",
        "writes",
    )

    def __init__(
        self,
        decide: "Callable[[M, Asked, Event], Slices[None] | None]",
        asked: Asked,
        key: str = "",
        *,
        writes: bool = True,
        prolongs: bool = False,
    ) -> None:
        """`decide`: an unbound method of the machine, for example `GroupCoordinatorShard.join`.
        `key`: the group or transactional id whose shard decides.

        `writes`: the request may append, so it is refused where an append would be refused.
        `prolongs`: the reply says that something still holds, for example a membership, and no
        append proves that this broker still leads. It is refused while another one may lead.
        """
        self.asked: Any = asked
        self.key = key
        self.writes = writes
        self.prolongs = prolongs
        self.is_done = False
        self.response: Any = None
        self.error: Exception | None = None
        self._decide: Callable[[M, Any, Event], Slices[None] | None] = decide
        self._tell: Callable[[Call[M]], None] | None = None

    def decide(self, machine: M, event: "Event") -> Slices[None] | None:
        """Adds to the event what is decided, now or in slices. Nothing else changes the machine
        between two slices."""
        return self._decide(machine, self.asked, event)

    def resolve(self, response: Any) -> None:
        """The request is answered."""
        assert not self.is_done, "answered twice"
        self.response, self.is_done = response, True
        if self._tell is not None:
            self._tell(self)

    def fail(self, error: Exception) -> None:
        """The machine does not answer the request; `error` says why."""
        assert not self.is_done, "answered twice"
        self.error, self.is_done = error, True
        if self._tell is not None:
            self._tell(self)

    def when_done(self, tell: "Callable[[Call[M]], None]") -> None:
        """`tell` is called once, at once if the call is done already."""
        if self.is_done:
            tell(self)
        else:
            self._tell = tell

    async def done(self) -> None:
        """Wait for the response or the error."""
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tell = partial(_wake, future)
            await future

    def __await__(self) -> Generator[Any, None, Any]:
        """The response. Raises the error."""
        yield from self.done().__await__()
        if self.error is not None:
            raise self.error
        return self.response


AnyCall: TypeAlias = Call[Any]
"""A call, where it does not matter which machine decides it."""


def _wake(future: asyncio.Future[None], _call: AnyCall) -> None:
    if not future.done():  # Whoever waited may have been cancelled.
        future.set_result(None)


class TransactionalProducer(NamedTuple):
    """The producer in whose open transaction the records of an event are."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None
    """The guard of its verification; None if the transaction was open already."""


@dataclass(slots=True)
class Event:
    """One request, timer or metadata image, and what a machine decides about it."""

    now_ms: int
    call: AnyCall | None = None
    topics: Topics = NO_TOPICS
    """Those of the newest image when the event began."""
    batch_bytes_max: int = 1 << 20
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[AnyCall, Any]] = field(default_factory=list)
    timers: dict[TimerKey, int | None] = field(default_factory=dict)
    """By key the deadline in milliseconds; None cancels."""
    notices: list[Any] = field(default_factory=list)
    """What people and metrics are told, for example of a rebalance."""
    notices_when_committed: list[Any] = field(default_factory=list)
    """Notices that are given once the records are committed, because others act on them."""
    is_atomic: bool = True
    """Whether all records must be in one batch. If so, they are refused if a batch cannot hold
    them."""
    producer: TransactionalProducer | None = None
    """If set, the records are appended at once, as one transactional batch of this producer."""

    @property
    def is_large(self) -> bool:
        """Whether it takes several iterations of the loop; its shard is closed meanwhile."""
        return len(self.records) > RECORDS_PER_SLICE or any(
            isinstance(value, LongValue) and value.is_long for _, value in self.records
        )

    def append(self, key: Any, value: Any | None) -> None:
        self.records.append(CoordinatorRecord(key, value))

    def reply(self, response: Any) -> None:
        """Answer the call of this event."""
        assert self.call is not None
        self.replies.append((self.call, response))

    def reply_to(self, call: AnyCall, response: Any) -> None:
        """Answer a call that was kept in an earlier event."""
        self.replies.append((call, response))

    def arm(self, key: TimerKey, deadline_ms: int) -> None:
        self.timers[key] = deadline_ms

    def cancel(self, key: TimerKey) -> None:
        self.timers[key] = None

    def has_room_for(self, key: Any, value: Any) -> bool:
        """Whether that record alone can be appended."""
        return run_to_end(self.finding_room_for(key, value))

    def finding_room_for(self, key: Any, value: Any) -> Slices[bool]:
        """As `has_room_for`, in slices."""
        size_bytes = yield from _size_bytes(CoordinatorRecord(key, value))
        return size_bytes <= self.batch_bytes_max

    def part(self) -> "Event":
        """For decisions that are made as a whole or not at all: see `take_if_it_fits`."""
        return Event(self.now_ms, self.call, self.topics)

    def take_if_it_fits(self, part: "Event") -> Slices[bool]:
        """Add a part, if all records can be in one batch."""
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


def _size_bytes(record: CoordinatorRecord) -> Slices[int]:
    key, value = yield from encode_in_slices(record)
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES


class Replayable(Protocol):
    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> Slices[None] | None:
        """Returns the rest of a large record, which must be run before the next record."""

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Slices[None]: ...


class Machine(Replayable, Protocol):
    """What a shard runs: the pure state of one partition of a coordinator's internal topic. The
    methods for requests are the machine's own: see `Call`."""

    def committed(self, end_offset: int) -> bool:
        """All records below `end_offset` are committed. Does one slice of the work that follows;
        returns whether there is more, so that it must be called again."""

    def elected(self, event: Event) -> Slices[None] | None:
        """This replica serves from now on; timers of what was loaded begin."""

    def resigned(self) -> None:
        """This replica stops serving: the machine forgets all that is not in the log."""

    def only_replies(self, key: TimerKey) -> bool:
        """Whether what this timer does needs no append."""

    def expired(self, key: TimerKey, event: Event) -> Slices[None] | None: ...
