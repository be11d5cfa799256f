"""The log of one replica with its high watermark: opened at the first use, changed in slices.

Leader side, follower side and façade of a partition share it. Whoever wants to read or write takes
`ready_log`, or else what `get_ready` returns; `prepare`, `when_ready` and `settled` are for those
who can wait. What takes long, opening and truncating, is a generator for `change`: until it has
ended the log is not ready, and whoever wants to use it is told to try again.
Invariant: start offset <= high watermark <= end offset of a log that is open.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from suwi.env import Clock
from suwi.env.tasks import Tasks
from suwi.log.partition_log import PartitionLog
from suwi.log.retention import applying_retention
from suwi.log.steps import Job, Steps, run_steps
from suwi.log.stray import UnreadableTopicId
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError, KafkaStorageError, NotLeaderOrFollower
from suwi.model.ids import NO_EPOCH, NodeId, Offset, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.delayed_operations import DelayedOperations
from suwi.replica.leader_state import IsLive, Proposal
from suwi.replica.loss import Loss
from suwi.replica.partition_storage import PartitionStorage
from suwi.replica.preparation import Turns, run_at_once, run_in_turns

if TYPE_CHECKING:
    # The broker is told of a partition, not of its log: the one circle of types in this package.
    from suwi.replica.partition import Partition

log = logging.getLogger(__name__)

_PREPARATION = "log preparation"


class LogNotReady(NotLeaderOrFollower):
    """The log is being opened or truncated: whoever can wait does so, see `ReplicaLog.settled`."""

    def __init__(self, partition: "Partition") -> None:
        super().__init__(f"the log of {partition.partition} is not ready yet")
        self.partition = partition


class PartitionContext(NamedTuple):
    """What a partition needs of the broker that it lives on."""

    node_id: NodeId
    clock: Clock
    turns: Turns
    lag_s_max: float
    """After how long a follower that has not caught up is out of sync."""
    is_live: IsLive
    tasks: Tasks
    on_append: Callable[["Partition"], None] = lambda _: None
    """Told once of a partition that has changed, and again after `ReplicaLog.dirty` is reset."""
    propose: Callable[["Partition", Proposal], None] = lambda *_: None
    """Brings a new in-sync set to the controller."""
    on_isr: Callable[[frozenset[NodeId], frozenset[NodeId]], None] = lambda *_: None
    """Told the in-sync set before and after a change."""
    on_loss: Callable[[Loss], None] = lambda _: None
    """Told of records that had to be truncated although they were committed, or may have been."""


class LeaderSide(Protocol):
    """The leader side of the partition (`LeaderReplica`), as its log knows it."""

    has_started: bool
    """Whether its epoch is in the log."""

    def start_epoch(self, partition_log: PartitionLog) -> None:
        """The log is ready for the first time in this epoch. Raises KafkaStorageError."""

    def resign(self) -> None:
        """The log could not be made ready."""

    def log_synced(self, partition_log: PartitionLog) -> None:
        """More of the log is on the disk."""


class ReplicaLog:
    __slots__ = (
        "_failure",
        "_preparation",
        "_ready_watchers",
        "_storage",
        "closed",
        "config",
        "context",
        "delayed",
        "dirty",
        "high_watermark",
        "leader_epoch",
        "leader_replica",
        "log",
        "offline_because",
        "owner",
        "partition",
        "ready_log",
        "unclean_epoch",
    )

    def __init__(
        self,
        partition: TopicPartition,
        config: TopicConfig,
        storage: PartitionStorage,
        context: PartitionContext,
        owner: "Partition",
    ) -> None:
        self.partition = partition
        self.config = config
        self.context = context
        self.owner = owner
        """Whose log it is: for those who are told of a change."""
        self.log: PartitionLog | None = None
        """None until it is opened. It may not be ready for use."""
        self.ready_log: PartitionLog | None = None
        """The log while it can be used: it is open, whole and, of a leader, its epoch has begun."""
        self.high_watermark = Offset(0)
        """What it knows to be committed, once the log is open."""
        self.leader_replica: LeaderSide | None = None
        """None while another broker leads, or nobody."""
        self.leader_epoch = NO_EPOCH
        self.unclean_epoch = NO_EPOCH
        """The last leader epoch that began with an unclean election."""
        self.delayed = DelayedOperations()
        self.dirty = False
        """Whether it has changed since the broker last asked."""
        self.offline_because: str | None = None
        """Why the log could not be opened; the next use tries again."""
        self.closed: BrokerError | None = None
        """Why it is of no more use: deleted, or the broker stops."""
        self._storage = storage
        self._preparation: asyncio.Task[None] | None = None
        """Opens or truncates the log; owned by this replica, ends when it is closed."""
        self._failure: BrokerError | None = None
        """Why the last preparation came to nothing."""
        self._ready_watchers: dict[Callable[[], None], None] = {}

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        if self.log is not None:
            self.log.config = config
            self.mark_dirty()  # It may have to be synced now.

    def begin_epoch(self, state: PartitionState | None) -> None:
        """Whatever was under way in the last epoch must be tried again, perhaps elsewhere. None:
        nobody has been named yet who leads."""
        self.leader_replica = None
        self.ready_log = self.log if self._is_whole() else None
        if state is not None:
            self.leader_epoch = state.leader_epoch
            self.unclean_epoch = state.unclean_epoch
        self.delayed.fail(NotLeaderOrFollower(f"{self.partition} has another leader epoch"))
        self.delayed.notify_all()

    def make_leader(self, leader_replica: LeaderSide) -> None:
        """This replica leads from now on; its epoch begins when the log is ready."""
        self.leader_replica = leader_replica
        self.ready_log = None

    def close(self, reason: BrokerError) -> None:
        """Deleted, or the broker stops: nobody need wait here any more."""
        self.closed = reason
        self.delayed.fail(reason)
        self.delayed.notify_all()

    # -- marks ---------------------------------------------------------------------------------

    def advance(self, high_watermark: Offset) -> None:
        """Everything below is committed; what is less than known already is no news."""
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        if not self.dirty:
            self.mark_dirty()  # It is to be written down, however late it comes after the append.
        self.delayed.committed(high_watermark)

    def mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.context.on_append(self.owner)

    def clamp_high_watermark(self) -> None:
        """The log became shorter: so did what is committed."""
        assert self.log is not None
        end_offset = min(self.high_watermark, self.log.end_offset)
        self.high_watermark = max(self.log.start_offset, end_offset)

    def writing_truncation(self) -> Steps[None]:
        """Write down that the log became shorter, before anything is appended to it."""
        assert self.log is not None
        self._storage.became_shorter(self.log, self.high_watermark)
        self.mark_dirty()
        yield from self._storage.writing_due()

    def retaining(self, now_ms: int, gone: list[str]) -> Steps[None]:
        """Take out what is too old or too much; files to delete are added to `gone`. Raises
        KafkaStorageError.

        Even from a leader whose epoch a full disk keeps from beginning: this makes room.
        """
        if self.log is None:
            self.prepare()
        if self.log is None or self._preparation is not None:
            return  # It has its turn at the next check.
        yield from applying_retention(self.log, self.high_watermark, now_ms, gone)

    # -- getting ready -------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log here and now, in a thread if nothing else uses the logs yet."""
        run_steps(self.opening())
        self.ready_log = self.log if self.leader_replica is None and self._is_whole() else None

    @property
    def is_preparing(self) -> bool:
        """Whether the log is being opened or truncated."""
        return self._preparation is not None

    def prepare(self) -> bool:
        """Whether it is ready. If not, it will be: see `when_ready`.

        Raises why that came to nothing the last time; the next call tries again.
        """
        if self.ready_log is not None:
            if self._ready_watchers:
                self._tell_ready_watchers()
            return True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        try:
            self.get_ready()
        except BrokerError:
            if self._preparation is None:
                raise
        return self.ready_log is not None

    def when_ready(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` once, when what is going on has come to an end, a good one or not; where
        nothing is, when the log is ready."""
        self._ready_watchers[watcher] = None

    async def settled(self) -> None:
        """Wait until nothing is going on. Raises why it came to nothing."""
        while self._preparation is not None:
            await asyncio.wait([self._preparation])
        if self._failure is not None:
            raise self._failure

    def get_ready(self) -> PartitionLog:
        """The log, ready for use, if that does not take long; else begin with it, and raise."""
        ready_log = self.ready_log
        if ready_log is not None:
            return ready_log
        if self.closed is not None:
            raise self.closed
        if self._preparation is None:
            # To begin an epoch is to write a file, and thousands may have to at once.
            if self._is_whole() and (self.leader_replica is None or self.context.turns.take()):
                return self._become_ready()
            self.change(self._opening_and_writing())
            ready_log = self.ready_log
        if ready_log is None:
            raise LogNotReady(self.owner)
        return ready_log

    def _is_whole(self) -> bool:
        partition_log = self.log
        return (
            partition_log is not None
            and self._preparation is None
            and partition_log.producers_are_known
            and not self._storage.has_due
        )

    def _become_ready(self) -> PartitionLog:
        assert self.log is not None
        if self.leader_replica is not None and not self.leader_replica.has_started:
            self.leader_replica.start_epoch(self.log)
        self.ready_log = self.log
        if self._preparation is None:
            self._tell_ready_watchers()
        return self.log

    def _tell_ready_watchers(self) -> None:
        watchers, self._ready_watchers = self._ready_watchers, {}
        for watcher in watchers:
            watcher()

    def change(self, steps: Steps[None]) -> None:
        """Change the log, at once as far as this turn of the loop allows. Raises a `BrokerError`
        of that part; the rest is done in the background."""
        assert self._preparation is None
        self.ready_log = None
        self._failure = None
        job = run_at_once(steps, self.context.turns)
        if job is None:
            self._become_ready()
        else:
            self._preparation = self.context.tasks.start(
                partial(self._finish_change, steps, job),
                name=_PREPARATION,
                on_failure=lambda _: None,  # `_finish_change` has dealt with it.
            )

    async def _finish_change(self, steps: Steps[None], job: Job) -> None:
        try:
            turns = self.context.turns
            if await run_in_turns(steps, job, turns, lambda: self.closed is None):
                self._become_ready()
        except BrokerError as error:
            self._failure = error
        except Exception as error:
            self.context.tasks.count(_PREPARATION, error)
            self._failure = KafkaStorageError(f"{self.partition}: {error!r}")
        finally:
            self._preparation = None
        if self._failure is not None:
            log.error("not ready", extra=self._fields(self._failure))
            if self.leader_replica is not None:
                self.leader_replica.resign()
        self._tell_ready_watchers()

    def opening(self) -> Steps[None]:
        if self.log is not None:
            return
        try:
            opened = yield from self._storage.opening_log(self.config)
        except UnreadableTopicId as error:
            self._went_offline(error)
            raise
        except OSError as error:
            self._went_offline(error)
            raise KafkaStorageError(f"{self.partition}: {error}") from error
        if self.offline_because is not None:
            self.offline_because = None
            log.info("replica online again", extra={"partition": str(self.partition)})
        opened.config = self.config  # It may have changed meanwhile.
        self.log = opened
        known = self._storage.checkpointed_watermark
        self.high_watermark = max(opened.start_offset, min(known, opened.end_offset))
        self._storage.lower_watermark(self.high_watermark)

    def _went_offline(self, error: Exception) -> None:
        """A log that cannot be opened is this replica's trouble, and no other's."""
        if self.offline_because is None:
            log.error("replica offline", extra=self._fields(error))
        self.offline_because = str(error)

    def _opening_and_writing(self) -> Steps[None]:
        """From whatever state to one in which records can be appended: none of them must be taken,
        after a crash, for what was written down of others."""
        yield from self.opening()
        assert self.log is not None
        if not self.log.producers_are_known:
            yield from self.log.reloading_producers()
        yield from self._storage.writing_due()

    def _fields(self, reason: object) -> dict[str, str]:
        return {"partition": str(self.partition), "reason": str(reason)}
