"""What a shard runs: the pure state of one partition of a coordinator's internal topic."""

from typing import Protocol, TypeVar

from suwi.coordinator.event import Event, TimerKey
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.env.slices import Slices
from suwi.records.record import Marker


class Replayable(Protocol):
    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> Slices[None] | None:
        """Returns the rest of a large record, which must be run before the next record."""

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Slices[None]: ...


class Machine(Replayable, Protocol):
    """The pure state of a shard. The methods for requests are the machine's own: see `Call`."""

    def committed(self, end_offset: int) -> bool:
        """All records below `end_offset` are committed. Returns whether it must be called again,
        because there is more to do for that than one slice."""

    def elected(self, event: Event) -> Slices[None] | None:
        """This replica serves from now on; timers of what was loaded begin."""

    def resigned(self) -> None:
        """This replica stops serving; only what a replay would give is kept."""

    def only_replies(self, key: TimerKey) -> bool:
        """Whether what this timer does needs no append."""

    def expired(self, key: TimerKey, event: Event) -> Slices[None] | None: ...


M = TypeVar("M", bound=Machine)
