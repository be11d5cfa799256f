"""The log of one replica with its high watermark: opened on first use, changed in slices.

Shared by the leader side, the follower side and `Partition`. Readers and writers use `ready_log`,
else the result of `get_ready`; `prepare`, `when_ready` and `wait_for_preparation` are for callers
that can wait. Long work (opening, truncating) is a generator that `change` runs: until it ends the
log is not ready, and requests get a retriable error.
Invariant: start offset <= high watermark <= end offset of an open log.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from suwi.env import Clock
from suwi.env.problems import ProblemKind, Problems
from suwi.env.tasks import Tasks
from suwi.log.directory_state import NO_DESCRIPTORS, NO_SPACE
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory, UnreadableTopicId
from suwi.log.offset_checkpoints import Due
from suwi.log.partition_log import PartitionLog
from suwi.log.retention import applying_retention
from suwi.log.sliced_work import Job, Steps, run_steps
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError, KafkaStorageError, NotLeaderOrFollower
from suwi.model.ids import NO_EPOCH, NO_NODE, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.delayed_operations import DelayedOperations, OnCommit
from suwi.replica.leader_state import IsLive, Proposal
from suwi.replica.log_preparation import Turns, run_at_once, run_in_turns
from suwi.replica.loss import Loss, LostRange
from suwi.replica.replication_quota import PartitionQuotas

log = logging.getLogger(__name__)

_PREPARATION = "log preparation"
_OPENING_FAILED = (ProblemKind.LOG_UNREADABLE, ProblemKind.TOPIC_ID_UNREADABLE)


class OwnReplica(NamedTuple):
    """What the metadata says of this broker's replica."""

    leader_epoch: LeaderEpoch | None = None
    has_other_replicas: bool = False
    is_out_of_sync: bool = False

    @classmethod
    def of(
        cls, node_id: NodeId, state: PartitionState | None, *, is_registered: bool
    ) -> "OwnReplica":
        """`is_registered`: the state is as new as this broker's registration. Before that, its
        leader may still be bringing it back into the ISR because of what it fetched earlier."""
        if state is None:
            return cls()
        is_complete = node_id in state.isr or node_id in state.elr
        is_out_of_sync = is_registered and state.leader != NO_NODE and not is_complete
        return cls(state.leader_epoch, len(state.replicas) > 1, is_out_of_sync)


@dataclass(slots=True, eq=False)
class PartitionStorage:
    """The log directory of one partition, and the partition's entries in its checkpoints. There is
    one for each replica all the time, so it is small."""

    _directories: LogDirectories
    _partition: TopicPartition
    topic_id: TopicId
    _state_of: Callable[[TopicPartition], OwnReplica]
    _is_new: bool
    """The topic was just created."""
    _due: list[Due] = field(default_factory=list)

    def opening_log(self, config: TopicConfig) -> Steps[PartitionLog]:
        """Raises KafkaStorageError, OSError."""
        storage = self._directories.directory_of(self._partition, is_new=self._is_new)
        state = self._state_of(self._partition)
        return storage.opening(
            self._partition,
            self.topic_id,
            config,
            state.leader_epoch,
            has_other_replicas=state.has_other_replicas,
            is_out_of_sync=state.is_out_of_sync,
        )

    def failed(self, error: OSError) -> KafkaStorageError:
        """Classify a failure to open the log. Returns the error to respond with."""
        return self._directory.state.failed(error)

    @property
    def checkpointed_watermark(self) -> Offset | None:
        """The high watermark of the last checkpoint, if it has one."""
        return self._directory.checkpoints.high_watermarks.get(self._partition)

    def lower_watermark(self, high_watermark: Offset) -> None:
        """Lower the high watermark in the checkpoint, if it is above."""
        self._due += self._directory.checkpoints.lower_watermark(self._partition, high_watermark)

    def log_truncated(self, truncated: PartitionLog, high_watermark: Offset) -> None:
        """The log was truncated: lower its checkpointed offsets."""
        self.lower_watermark(high_watermark)
        self._due += self._directory.checkpoints.log_truncated(truncated)

    @property
    def has_due(self) -> bool:
        """Whether a checkpoint must be written before the next append."""
        return any(not self._directory.checkpoints.is_written(due) for due in self._due)

    def writing_due(self) -> Steps[None]:
        """Write the checkpoints that are due. Raises KafkaStorageError."""
        while self._due:
            state, checkpoints = self._directory.state, self._directory.checkpoints
            due = self._due[0]
            if not checkpoints.is_written(due):
                state.check()
                try:
                    yield checkpoints.job_for(due.checkpoint)
                except OSError as error:
                    raise state.failed(error) from error
            self._due = [other for other in self._due if not checkpoints.is_written(other)]

    @property
    def _directory(self) -> LogDirectory:
        """The data directory of a log that is open."""
        return self._directories.directory_of(self._partition, is_new=False)


class LogNotReady(NotLeaderOrFollower):
    """The log is being opened or truncated. See `ReplicaLog.wait_for_preparation`."""

    def __init__(self, replica_log: "ReplicaLog", *, follows_failure: bool = False) -> None:
        super().__init__(f"the log of {replica_log.partition} is not ready yet")
        self.replica_log = replica_log
        self.follows_failure = follows_failure
        """Whether the attempt before has failed."""


class PartitionContext(NamedTuple):
    """What a partition needs from its broker."""

    node_id: NodeId
    clock: Clock
    turns: Turns
    lag_s_max: float
    """A follower that has not been caught up for longer than this is out of sync."""
    is_live: IsLive
    tasks: Tasks
    problems: Problems
    quotas_of: Callable[[TopicPartition, TopicConfig], PartitionQuotas] = lambda *_: (
        PartitionQuotas()
    )
    on_append: Callable[["ReplicaLog"], None] = lambda _: None
    """Called when a log changes, once until its `dirty` is reset."""
    propose: Callable[["ReplicaLog", Proposal], None] = lambda *_: None
    """Sends an ISR proposal to the controller."""
    leave_isr: Callable[["ReplicaLog"], None] = lambda _: None
    """Called when a follower's log cannot be written."""
    on_isr: Callable[[frozenset[NodeId], frozenset[NodeId]], None] = lambda *_: None
    """Called with the ISR before and after a change."""
    on_loss: Callable[[Loss], None] = lambda _: None
    """Called when committed records, or records that may be committed, were truncated."""
    on_truncated: Callable[["ReplicaLog", Offset, Iterable[LostRange]], None] = lambda *_: None
    """Called with the new end of a truncated log, and with what is removed."""


class LeaderSide(Protocol):
    """The leader side of the partition (`LeaderReplica`), as its log sees it."""

    has_started: bool
    """Whether the leader epoch is in the log."""

    def start_epoch(self, partition_log: PartitionLog) -> None:
        """The log is ready for the first time in this leader epoch. Raises KafkaStorageError."""

    def resign(self) -> None:
        """The log could not be prepared."""

    def log_synced(self, partition_log: PartitionLog) -> None:
        """A sync of the log has completed."""


@dataclass(slots=True, eq=False)
class ReplicaLog:
    partition: TopicPartition
    config: TopicConfig
    _storage: PartitionStorage
    context: PartitionContext
    log: PartitionLog | None = None
    """None until the log is opened. An open log may still not be ready."""
    ready_log: PartitionLog | None = None
    """The log while it is ready: open, not being changed, and a leader's epoch has started."""
    high_watermark: Offset = Offset(0)
    """Valid once the log is open."""
    leader_replica: LeaderSide | None = None
    """None while another broker leads or the partition has no leader."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    unclean_epoch: LeaderEpoch = NO_EPOCH
    """The last leader epoch that began with an unclean election."""
    delayed: DelayedOperations = field(default_factory=DelayedOperations)
    delayed_syncs: DelayedOperations | None = None
    """Produces with acks=1 that wait until this replica has synced them (flush.messages=1)."""
    dirty: bool = False
    """Whether the log changed since `take_dirty_partitions`."""
    fetch_stopped_in: LeaderEpoch | None = None
    """The log is damaged, and this follower has sent no fetch in a later leader epoch."""
    offline_because: str | None = None
    """Why the log could not be opened; the next use tries again."""
    closed: BrokerError | None = None
    """Why the replica is closed: the partition was deleted or the broker is stopping."""
    _preparation: asyncio.Task[None] | None = None
    """Opens or truncates the log. Owned by this replica; ends when the replica is closed."""
    _failure: BrokerError | None = None
    """Why the last preparation failed."""
    _ready_watchers: dict[Callable[[], None], None] = field(default_factory=dict)

    @property
    def topic_id(self) -> TopicId:
        return self._storage.topic_id

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        if self.log is not None:
            self.log.config = config
            self.mark_dirty()  # flush.messages may require a sync now.

    def begin_epoch(self, state: PartitionState | None) -> None:
        """Start a new leader epoch, or with None one without a known leader: operations that wait
        in the old epoch fail with a retriable error."""
        self.leader_replica = None
        self.ready_log = self.log if self._is_whole() else None
        if state is not None:
            self.leader_epoch = state.leader_epoch
            self.unclean_epoch = state.unclean_epoch
        self.fail_delayed(NotLeaderOrFollower(f"{self.partition} has a new leader epoch"))
        self.delayed.notify_all()

    def make_leader(self, leader_replica: LeaderSide) -> None:
        """This replica is the leader now; its epoch starts when the log is ready."""
        self.leader_replica = leader_replica
        self.ready_log = None

    def close(self, reason: BrokerError) -> None:
        """The partition was deleted or the broker is stopping: fail everything that waits."""
        self.closed = reason
        for kind in _OPENING_FAILED:
            self.context.problems.forget(kind, str(self.partition))
        self.fail_delayed(reason)
        self.delayed.notify_all()

    def when_synced(self, end: Offset, on_sync: OnCommit, timeout_s: float) -> None:
        """Call `on_sync` once: when this replica has synced all below `end`, or cannot, or has not
        within the timeout. For flush.messages=1."""
        if self.closed is not None:
            on_sync(self.closed)
        elif self.log is not None and end <= self.log.recovery_point:
            on_sync(None)
        else:
            self.delayed_syncs = self.delayed_syncs or DelayedOperations()
            self.delayed_syncs.add(end, on_sync, timeout_s)

    def fail_delayed(self, error: BrokerError) -> None:
        """Complete all delayed produces with an error."""
        self.delayed.fail(error)
        if self.delayed_syncs is not None:
            self.delayed_syncs.fail(error)

    # -- offsets -------------------------------------------------------------------------------

    def advance(self, high_watermark: Offset) -> None:
        """Advance the high watermark; a lower value is ignored."""
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        if not self.dirty:
            self.mark_dirty()  # The checkpoint needs it even if it advances long after the append.
        self.delayed.committed(high_watermark)

    def mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.context.on_append(self)

    def clamp_high_watermark(self) -> None:
        """The log was truncated: keep the high watermark within it."""
        assert self.log is not None
        end_offset = min(self.high_watermark, self.log.end_offset)
        self.high_watermark = max(self.log.start_offset, end_offset)

    def writing_truncation(self) -> Steps[None]:
        """Write the lowered checkpoints after a truncation, before the next append."""
        assert self.log is not None
        self._storage.log_truncated(self.log, self.high_watermark)
        self.mark_dirty()
        yield from self._storage.writing_due()

    def retaining(self, now_ms: int, deleted: list[str]) -> Steps[None]:
        """Remove segments that exceed the retention limits; adds their files' paths to `deleted`.
        Raises KafkaStorageError.

        It also runs on a leader whose epoch a full disk prevents from starting: retention frees
        space.
        """
        if self.log is None:
            self.prepare()
        if self.log is None or self._preparation is not None:
            return  # The next retention check tries again.
        yield from applying_retention(self.log, self.high_watermark, now_ms, deleted)

    # -- preparation ---------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log in this call; may run in a thread as long as nothing else uses the logs."""
        run_steps(self.opening())
        self.ready_log = self.log if self.leader_replica is None and self._is_whole() else None

    @property
    def is_preparing(self) -> bool:
        """Whether the log is being opened or truncated."""
        return self._preparation is not None

    def prepare(self) -> bool:
        """Returns whether the log is ready. If not, preparation is running: see `when_ready`.

        Raises the error of the last failed preparation once; the next call tries again.
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
        """Call `watcher` once, when the running preparation has ended, successfully or not; if none
        is running, when the log is ready."""
        self._ready_watchers[watcher] = None

    async def wait_for_preparation(self) -> None:
        """Wait until no preparation is running. Raises the error if it failed."""
        while self._preparation is not None:
            await asyncio.wait([self._preparation])
        if self._failure is not None:
            raise self._failure

    def get_ready(self) -> PartitionLog:
        """The log, if it can be made ready within this call; else start preparing it and raise."""
        ready_log = self.ready_log
        if ready_log is not None:
            return ready_log
        if self.closed is not None:
            raise self.closed
        has_failed = self._failure is not None
        if self._preparation is None:
            # Starting an epoch writes a file, and thousands may have to start at once.
            if self._is_whole() and (self.leader_replica is None or self.context.turns.take()):
                return self._become_ready()
            self.change(self._opening_and_writing())
            ready_log = self.ready_log
        if ready_log is None:
            raise LogNotReady(self, follows_failure=has_failed)
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
        self.delayed.notify_followers()  # Their fetches wait for the log.

    def change(self, steps: Steps[None]) -> None:
        """Change the log, in this call as far as the current loop iteration allows, the rest in the
        background. Raises a `BrokerError` of the first part."""
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
                on_failure=lambda _: None,  # `_finish_change` handles it.
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
            extra = {"partition": str(self.partition), "reason": str(self._failure)}
            log.error("log preparation failed", extra=extra)
            if self.leader_replica is not None:
                self.leader_replica.resign()
        self._tell_ready_watchers()

    def opening(self) -> Steps[None]:
        if self.log is not None:
            return
        try:
            opened = yield from self._storage.opening_log(self.config)
        except UnreadableTopicId as error:
            self._went_offline(ProblemKind.TOPIC_ID_UNREADABLE, error)
            raise
        except OSError as error:
            if error.errno in NO_SPACE | NO_DESCRIPTORS:
                raise self._storage.failed(error) from error
            self._went_offline(ProblemKind.LOG_UNREADABLE, error)
            raise KafkaStorageError(f"{self.partition}: {error}") from error
        if self.offline_because is not None:
            self.offline_because = None
            for kind in _OPENING_FAILED:
                self.context.problems.resolve(kind, str(self.partition))
        opened.config = self.config  # It may have changed during the opening.
        self.log = opened
        known = self._storage.checkpointed_watermark
        if known is None:
            known = Offset(0)
            self.mark_dirty()  # The checkpoint has a line for every partition, as Kafka's.
        self.high_watermark = max(opened.start_offset, min(known, opened.end_offset))
        self._storage.lower_watermark(self.high_watermark)

    def _went_offline(self, kind: ProblemKind, error: Exception) -> None:
        """A log that cannot be opened affects only this replica."""
        self.context.problems.report(kind, str(self.partition), str(error))
        self.offline_because = str(error)

    def _opening_and_writing(self) -> Steps[None]:
        """Bring the log into a state in which records can be appended. Lowered checkpoints are
        written first: else a crash would apply the old ones to newly appended records."""
        yield from self.opening()
        assert self.log is not None
        if not self.log.producers_are_known:
            yield from self.log.reloading_producers()
        yield from self._storage.writing_due()


async def wait_until_ready(logs: Iterable[ReplicaLog], within_s: float) -> None:
    """Wait until preparing these logs has ended, at most `within_s`. Failures show on first use."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            for replica_log in logs:
                with suppress(BrokerError):
                    if not replica_log.prepare():
                        await replica_log.wait_for_preparation()
