"""What a shard works with: the pure machine that decides, and what all shards share."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from suwi.coordinator.decision import Decision, Slices, TimerKey
from suwi.coordinator.record import Codec, CoordinatorRecord
from suwi.coordinator.record_facts import RecordFacts
from suwi.env import Clock
from suwi.env.tasks import Tasks
from suwi.model.ids import LeaderEpoch, TopicPartition
from suwi.records.record import Marker


class Machine(Protocol):
    """The pure state of a shard."""

    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> Slices | None:
        """The rest of a large record comes in slices: they are to be gone through before the
        next."""

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Slices: ...

    def committed(self, end_offset: int) -> bool:
        """All records below `end_offset` are committed. Whether there is more to do for that: then
        it is called again."""

    def elected(self, now_ms: int, decision: Decision) -> Slices | None:
        """This replica serves from now on; timers of what was loaded begin."""

    def resigned(self) -> None:
        """This replica serves no more: only what a replay would give is kept."""

    def only_replies(self, key: TimerKey) -> bool:
        """Whether what this timer does needs no append."""

    def expired(self, key: TimerKey, now_ms: int, decision: Decision) -> Slices | None: ...


Decide: TypeAlias = Callable[[Any, int, Decision], Slices | None]
"""Gets the machine, the time in milliseconds, and the decision to fill, now or in slices. Nothing
else changes the machine between two slices."""


class ShardContext(NamedTuple):
    """What the shards of one coordinator share."""

    new_machine: Callable[[], Any]
    codec: Codec
    clock: Clock
    tasks: Tasks
    commit_timeout_s: float
    isr_silence_s_max: float
    """How long a member of the ISR may not have fetched before this replica stops answering reads:
    another one may lead by then. A few fetches and not the timeout of the session: members whom the
    store has told of a new leader stop fetching at once, and until this replica notices that, its
    replies may be out of date. The price: while a member hangs, groups that need no append wait
    until it has left the ISR."""
    on_notice: Callable[[Any], None]
    on_failure: Callable[[TopicPartition, Exception], None]


class Status(enum.Enum):
    FOLLOWING = "following"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """Its records cannot be replayed. Tried again after a while, and when its role changes."""
    CLOSED = "closed"


class Activation(NamedTuple):
    epoch: LeaderEpoch
    at_ms: int
