"""What clients did and which responses they got, recorded as it happens.

Writers enter at `History.send`, readers at `History.reader`, and the final read of everything
at `History.final`. `history_checker.py` decides whether a correct log could have behaved so.
This module does not depend on whether the clients are simulated, real, or ours.
Invariant: no value is sent twice, so that a value that is read identifies its write.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

ACKS_ALL = -1


class Outcome(Enum):
    """What a client knows about a write or a transaction."""

    UNKNOWN = "may have happened"
    DONE = "was acknowledged"
    NOT_DONE = "has certainly not happened"


@dataclass(slots=True, eq=False)
class Write:
    """One record that a client sends."""

    writer: str
    partition: str
    value: bytes
    acks: int
    idempotent: bool
    """Stored at most once, in the order in which its writer sent it."""
    transaction: str | None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    """The offset in the acknowledgement; None if it had none."""
    on_outcome: "Callable[[Write], None] | None" = None

    def acked(self, offset: int | None = None) -> None:
        assert self.outcome is Outcome.UNKNOWN
        self.outcome, self.offset = Outcome.DONE, offset
        if self.on_outcome is not None:
            self.on_outcome(self)

    def refused(self) -> None:
        """A response says that it is not stored, and it will not be sent again."""
        assert self.outcome is Outcome.UNKNOWN
        self.outcome = Outcome.NOT_DONE
        if self.on_outcome is not None:
            self.on_outcome(self)

    @property
    def is_acked(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def is_promised(self) -> bool:
        """Acknowledged with acks=all: it may never be lost."""
        return self.outcome is Outcome.DONE and self.acks == ACKS_ALL

    def __str__(self) -> str:
        return f"{self.value!r} of {self.writer} in {self.partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """A reader moves to an offset: at its start, by a seek, or when it takes over a partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Seen:
    offset: int
    value: bytes


@dataclass(slots=True, eq=False)
class Reading:
    """One reader: where it started in each partition, what it read, and whether it has finished."""

    name: str
    committed_only: bool = False
    """It reads with isolation.level=read_committed."""
    events: dict[str, list[Position | Seen]] = field(default_factory=dict)
    is_finished: bool = False

    def start_at(self, partition: str, offset: int) -> None:
        self.events.setdefault(partition, []).append(Position(offset))

    def saw(self, partition: str, offset: int, value: bytes) -> None:
        self.events[partition].append(Seen(offset, value))

    def finished(self) -> None:
        """After healing it has read everything up to the end."""
        self.is_finished = True


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A partition at the end, when no writer is left, read with read_committed."""

    start: int
    """Below this offset retention may have removed records."""
    records: dict[int, bytes]
    timestamps: dict[int, int] = field(default_factory=dict)
    """Of the records, by offset; empty if nobody recorded them."""

    @property
    def end(self) -> int:
        return max(self.records, default=self.start - 1) + 1


@dataclass(frozen=True, slots=True)
class LookUp:
    """An offset by time as a client got it (negative: there is none)."""

    client: str
    partition: str
    asked: int
    """A time in milliseconds; -1 is the newest offset, -2 the oldest, -3 the newest time's."""
    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportedLoss:
    """A range of offsets that the cluster itself reported as lost."""

    partition: str
    first: int
    end: int


@dataclass(slots=True)
class History:
    writes: dict[bytes, Write] = field(default_factory=dict)
    """By value, in the order in which they were sent."""
    transactions: dict[str, Outcome] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    finals: dict[str, FinalLog] = field(default_factory=dict)
    look_ups: list[LookUp] = field(default_factory=list)
    """In the order of the responses; a client sends one request after the other."""
    reported: list[ReportedLoss] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    """The offset of each partition below which a client has requested the deletion of records."""
    replicas_move: bool = False
    """Reassignments replace replicas by new ones, which copy what is not deleted."""
    on_send: Callable[[Write], None] | None = None
    """Called with each write; it may set the write's `on_outcome`."""

    def send(
        self,
        writer: str,
        partition: str,
        value: bytes,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = False,
        transaction: str | None = None,
    ) -> Write:
        """A writer sends a record; its outcome is recorded in the `Write`."""
        assert value not in self.writes, f"{value!r} is sent twice"
        assert transaction is None or transaction in self.transactions
        write = Write(writer, partition, value, acks, idempotent, transaction)
        self.writes[value] = write
        if self.on_send is not None:
            self.on_send(write)
        return write

    def begin(self, transaction: str) -> None:
        assert transaction not in self.transactions
        self.transactions[transaction] = Outcome.UNKNOWN

    def committed(self, transaction: str) -> None:
        assert self.transactions[transaction] is Outcome.UNKNOWN
        self.transactions[transaction] = Outcome.DONE

    def aborted(self, transaction: str) -> None:
        assert self.transactions[transaction] is Outcome.UNKNOWN
        self.transactions[transaction] = Outcome.NOT_DONE

    def reader(self, name: str, *, committed_only: bool = False) -> Reading:
        reading = Reading(name, committed_only)
        self.readings.append(reading)
        return reading

    def looked_up(
        self,
        client: str,
        partition: str,
        asked: int,
        *,
        offset: int,
        timestamp: int,
        leader_epoch: int,
    ) -> None:
        self.look_ups.append(LookUp(client, partition, asked, offset, timestamp, leader_epoch))

    def final(
        self,
        partition: str,
        records: Iterable[tuple[int, bytes]],
        *,
        start: int = 0,
        timestamps: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.finals[partition] = FinalLog(start, dict(records), dict(timestamps))

    def reported_lost(self, partition: str, first: int, end: int) -> None:
        """The cluster reported this loss: its records are not expected."""
        self.reported.append(ReportedLoss(partition, first, end))

    def delete(self, partition: str, before: int) -> None:
        """A client requests the deletion of everything below that offset."""
        self.deleted[partition] = max(before, self.deleted.get(partition, 0))

    def is_reported(self, partition: str, offset: int | None) -> bool:
        """Whether an offset is in a reported loss; True for an unknown offset if there is any."""
        return any(
            loss.partition == partition and (offset is None or loss.first <= offset < loss.end)
            for loss in self.reported
        )

    def transaction_of(self, write: Write) -> Outcome:
        """The outcome of a write's transaction; without a transaction it counts as committed."""
        return Outcome.DONE if write.transaction is None else self.transactions[write.transaction]
