"""One partition's replica on this broker: it leads or it follows, and knows what is committed.

Produce enters at `append`, readers at `read`, followers' progress at `record_progress`, waiting at
`when_committed` and `watch`; a follower's fetcher at `append_fetched`, `diverge`, `start_over`.
What takes long, opening and truncating its log, is done in turns of the loop (`preparation.py`):
until then it is not ready, and whoever wants to read or write is told to try again.
Invariant: start offset <= last stable offset <= high watermark <= end offset.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from suwi.env import Clock
from suwi.env.tasks import Tasks
from suwi.log.epochs import LeaderEpochs
from suwi.log.partition_log import Appended, LogSlice, PartitionLog
from suwi.log.retention import applying_retention
from suwi.log.steps import Job, Steps, after_each, run_steps
from suwi.log.stray import UnreadableTopicId
from suwi.metadata.image import PartitionState
from suwi.model.errors import (
    BrokerError,
    CorruptMessage,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from suwi.model.ids import (
    NO_EPOCH,
    NO_NODE,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicId,
    TopicPartition,
)
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader, batches, read_header
from suwi.replica.home import Home
from suwi.replica.intake import intake_of
from suwi.replica.leadership import UNKNOWN_EPOCH, IsLive, Leadership, Proposal
from suwi.replica.log_sync import sync_log
from suwi.replica.loss import Loss, lost_between
from suwi.replica.preparation import Turns, run_at_once, run_in_turns
from suwi.replica.storage_refusals import StorageRefusals
from suwi.replica.waiting import OnCommit, Waiting

log = logging.getLogger(__name__)

_ACKS_ALL = -1
_PREPARATION = "log preparation"


class LogNotReady(NotLeaderOrFollower):
    """The log is being opened or truncated: whoever can wait does so, see `Partition.settled`."""

    def __init__(self, partition: "Partition") -> None:
        super().__init__(f"the log of {partition.partition} is not ready yet")
        self.partition = partition


class _FollowsRefused(KafkaStorageError):
    """The producer has to go back to a batch that was refused: see `StorageRefusals`."""


class Surroundings(NamedTuple):
    """What a partition needs of the broker that it lives on."""

    node_id: NodeId
    clock: Clock
    turns: Turns
    lag_s_max: float
    """After how long a follower that has not caught up is out of sync."""
    is_live: IsLive
    tasks: Tasks
    on_append: Callable[["Partition"], None] = lambda _: None
    """Told once of a partition that has changed, and again after `touched` is reset."""
    propose: Callable[["Partition", Proposal], None] = lambda *_: None
    """Brings a new in-sync set to the controller."""
    on_isr: Callable[[frozenset[NodeId], frozenset[NodeId]], None] = lambda *_: None
    """Told the in-sync set before and after a change."""
    on_loss: Callable[[Loss], None] = lambda _: None
    """Told of records that had to be truncated although they were committed, or may have been."""


class Partition:
    """A replica. Its log is opened at the first use."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        home: Home,
        around: Surroundings,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.intake = intake_of(config)
        self.leader = NO_NODE
        self.leader_epoch = NO_EPOCH
        self._unclean_epoch = NO_EPOCH
        """The last one that began with an unclean election."""
        self.leadership: Leadership | None = None
        """What it knows as the leader; None while another leads, or nobody."""
        self.touched = False
        self._home = home
        self._around = around
        self._log: PartitionLog | None = None
        self._is_ready = False
        """Whether the log can be used: it is open, whole and, of a leader, in office."""
        self._preparation: asyncio.Task[None] | None = None
        """Opens or truncates the log; owned by this partition, ends when it is closed."""
        self._failure: BrokerError | None = None
        """Why the last preparation came to nothing."""
        self._ready_watchers: dict[Callable[[], None], None] = {}
        self._in_office = False
        self._has_enough_replicas = True
        self._high_watermark = Offset(0)
        self.offline_because: str | None = None
        """Why its log could not be opened; the next use tries again."""
        self._refusals: StorageRefusals | None = None
        """Made at the first refusal: most replicas never see one."""
        self._waiting = Waiting()
        self._sync: asyncio.Task[None] | None = None
        self._closed: BrokerError | None = None

    # -- what it holds -------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        """The log, ready for use. Raises a `BrokerError` where it is not, see `prepare`."""
        if not self._is_ready:
            self._get_ready()
        assert self._log is not None
        return self._log

    @property
    def is_open(self) -> bool:
        """Whether its log has been used since the start."""
        return self._log is not None

    @property
    def log_as_it_is(self) -> PartitionLog:
        """The log of a replica that is open. Never raises: unlike `log`, it does not let a leader
        take office, which a full disk may prevent."""
        assert self._log is not None
        return self._log

    @property
    def watermark_as_it_is(self) -> Offset:
        """What it knows to be committed, if it is open; see `log_as_it_is`."""
        return self._high_watermark

    @property
    def is_closed(self) -> bool:
        """Whether it was deleted, or this broker stops."""
        return self._closed is not None

    def check_open(self) -> None:
        """For those who had to wait. Raises what has become of it: deleted, or its broker stops."""
        if self._closed is not None:
            raise self._closed

    @property
    def is_leader(self) -> bool:
        return self.leadership is not None

    @property
    def high_watermark(self) -> Offset:
        if not self._is_ready:
            self._get_ready()
        return self._high_watermark

    @property
    def watermark_is_known(self) -> bool:
        """Whether all is known to be committed that was so when this leader's epoch began."""
        leadership = self.leadership
        return leadership is None or self.high_watermark >= leadership.epoch_start

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is decided."""
        undecided = self.log.producers.first_open_txn_offset
        high_watermark = self._high_watermark
        return high_watermark if undecided is None else min(undecided, high_watermark)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.intake = intake_of(config)
        if self._log is not None:
            self._log.config = config
            self._touch()  # It may have to be synced now.
        if self.leadership is not None:
            self._count_replicas(self.leadership)
            if self._in_office:
                self._update_watermark()

    def check_epoch(self, known_to_client: int) -> None:
        """Hazard 4: a client that knows another epoch may be talking to the wrong leader."""
        if known_to_client == NO_EPOCH or known_to_client == self.leader_epoch:
            return
        if known_to_client < self.leader_epoch:
            raise FencedLeaderEpoch(f"epoch {known_to_client} is over: {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"epoch {known_to_client} is not known yet: {self.leader_epoch}")

    # -- getting ready -------------------------------------------------------------------------

    def open(self) -> None:
        """Open the log here and now, in a thread if nothing else uses the logs yet: who waits
        until it is ready hears of that from `prepare`."""
        run_steps(self._opening())
        self._is_ready = self.leadership is None and self._is_whole()

    @property
    def is_ready(self) -> bool:
        """Whether its log can be used; if not, see `prepare`."""
        return self._is_ready

    @property
    def is_preparing(self) -> bool:
        """Whether its log is being opened or truncated."""
        return self._preparation is not None

    def prepare(self) -> bool:
        """Whether it is ready. If not, it will be: see `when_ready`.

        Raises why that came to nothing the last time; the next call tries again.
        """
        if self._is_ready:
            if self._ready_watchers:
                self._tell_ready_watchers()
            return True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        try:
            self._get_ready()
        except BrokerError:
            if self._preparation is None:
                raise
        return self._is_ready

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

    def _get_ready(self) -> None:
        """Get ready if that does not take long; else begin with it, and raise."""
        if self._closed is not None:
            raise self._closed
        if self._preparation is None:
            # To take office is to write a file, and thousands may have to at once.
            if self._is_whole() and (self.leadership is None or self._around.turns.take()):
                self._become_ready()
                return
            self._run(self._opening_and_writing())
        if not self._is_ready:
            raise LogNotReady(self)

    def _is_whole(self) -> bool:
        partition_log = self._log
        return (
            partition_log is not None
            and self._preparation is None
            and partition_log.producers_are_known
            and not self._home.has_due
        )

    def _become_ready(self) -> None:
        assert self._log is not None
        if self.leadership is not None and not self._in_office:
            self._enter_office(self._log, self.leadership)
        self._is_ready = True
        if self._preparation is None:
            self._tell_ready_watchers()

    def _tell_ready_watchers(self) -> None:
        watchers, self._ready_watchers = self._ready_watchers, {}
        for watcher in watchers:
            watcher()

    def _run(self, steps: Steps[None]) -> None:
        """Change the log, at once as far as this turn of the loop allows. Raises a `BrokerError`
        of that part; the rest is done in the background."""
        assert self._preparation is None
        self._is_ready = False
        self._failure = None
        job = run_at_once(steps, self._around.turns)
        if job is None:
            self._become_ready()
        else:
            self._preparation = self._around.tasks.start(
                partial(self._run_on, steps, job),
                name=_PREPARATION,
                on_failure=lambda _: None,  # `_run_on` has dealt with it.
            )

    async def _run_on(self, steps: Steps[None], job: Job) -> None:
        try:
            turns = self._around.turns
            if await run_in_turns(steps, job, turns, lambda: self._closed is None):
                self._become_ready()
        except BrokerError as error:
            self._failure = error
        except Exception as error:
            self._around.tasks.count(_PREPARATION, error)
            self._failure = KafkaStorageError(f"{self.partition}: {error!r}")
        finally:
            self._preparation = None
        if self._failure is not None:
            log.error("not ready", extra=self._fields(self._failure))
            self._resign()
        self._tell_ready_watchers()

    def _opening(self) -> Steps[None]:
        if self._log is not None:
            return
        try:
            opened = yield from self._home.opening_log(self.config)
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
        self._log = opened
        known = self._home.checkpointed_watermark
        self._high_watermark = max(opened.start_offset, min(known, opened.end_offset))
        self._home.lower_watermark(self._high_watermark)

    def _went_offline(self, error: Exception) -> None:
        """A log that cannot be opened is this replica's trouble, and no other's."""
        if self.offline_because is None:
            log.error("replica offline", extra=self._fields(error))
        self.offline_because = str(error)

    def _opening_and_writing(self) -> Steps[None]:
        """From whatever state to one in which records can be appended: none of them must be taken,
        after a crash, for what was written down of others."""
        yield from self._opening()
        assert self._log is not None
        if not self._log.producers_are_known:
            yield from self._log.reloading_producers()
        yield from self._home.writing_due()

    def _syncing(self, partition_log: PartitionLog) -> Steps[None]:
        """What a follower says with its next fetch is what it vouches for."""
        job = partition_log.sync_job()
        if job is None:
            return
        try:
            yield job.run
        except OSError as error:
            partition_log.sync_failed(job, error)
            raise KafkaStorageError(f"{self.partition}: {error}") from error
        except BaseException:  # Nobody foresaw it, or nobody goes on with this.
            partition_log.sync_abandoned(job)
            raise
        partition_log.synced(job)

    def _fields(self, reason: object) -> dict[str, str]:
        return {"partition": str(self.partition), "reason": str(reason)}

    # -- taking and giving up the lead ---------------------------------------------------------

    def lead(self, state: PartitionState, broker_epoch: int) -> None:
        """The controller has made this replica the leader, or has changed the in-sync set."""
        if self._closed is not None:
            return  # This broker stops, and the controller will hear of it.
        current = self.leadership
        if current is not None and current.leader_epoch == state.leader_epoch:
            self.confirm(state)
            return
        self._begin_epoch(state)
        self.leadership = Leadership(
            self._around.node_id,
            broker_epoch,
            state,
            epoch_start=Offset(0),  # known when the log is open
            now_s=asyncio.get_running_loop().time(),
        )
        self._is_ready = False
        self._count_replicas(self.leadership)
        if self._log is not None or len(state.replicas) > 1:
            try:
                self._get_ready()
            except KafkaStorageError as error:
                log.error("cannot lead", extra=self._fields(error))
                self._resign()
            except NotLeaderOrFollower:
                pass  # It takes office when its log is ready.

    def follow(self, state: PartitionState) -> None:
        """Another broker leads, or nobody does."""
        if self.leadership is None and self.leader_epoch == state.leader_epoch:
            self.leader = state.leader
            return
        self._begin_epoch(state)

    def stand_by(self) -> None:
        """This broker has lost its place in the cluster: it may not lead until told so again."""
        if self.leadership is not None:
            self._begin_epoch(None)

    def _begin_epoch(self, state: PartitionState | None) -> None:
        """Whatever was under way in the last epoch must be tried again, perhaps elsewhere."""
        self.leadership = None
        self._in_office = False
        self._is_ready = self._is_whole()
        self.leader = state.leader if state is not None else NO_NODE
        if state is not None:
            self.leader_epoch = state.leader_epoch
            self._unclean_epoch = state.unclean_epoch
        self._waiting.fail(NotLeaderOrFollower(f"{self.partition} has another leader epoch"))
        self._waiting.tell_all()

    def _enter_office(self, partition_log: PartitionLog, leadership: Leadership) -> None:
        leadership.epoch_start = partition_log.end_offset
        partition_log.assign_epoch(self.leader_epoch, partition_log.end_offset)
        self._in_office = True
        if len(leadership.replicas) == 1:
            # All that the only replica holds is committed.
            self._advance(partition_log.end_offset)
        else:
            self._sync_if_due(partition_log)
            self._update_watermark()

    def confirm(self, state: PartitionState) -> None:
        """The controller's word on the in-sync set of this leader's epoch."""
        leadership = self.leadership
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            return
        before = leadership.members
        if not leadership.confirm(state):
            return
        log.info(
            "in-sync set confirmed",
            extra={"partition": str(self.partition), "isr": sorted(leadership.members)},
        )
        self._around.on_isr(before, leadership.members)
        self._count_replicas(leadership)
        if self._in_office:
            self._update_watermark()

    def refused(self, proposal: Proposal, *, settled: bool) -> None:
        leadership = self.leadership
        if leadership is not None and leadership.leader_epoch == proposal.leader_epoch:
            leadership.refused(proposal, settled=settled)

    def _count_replicas(self, leadership: Leadership) -> None:
        needed = min(self.config.min_insync_replicas, len(leadership.replicas))
        self._has_enough_replicas = len(leadership.members) >= needed
        if not self._has_enough_replicas:
            self._waiting.fail(
                NotEnoughReplicasAfterAppend(
                    f"{self.partition} has {len(leadership.members)} replicas in sync, "
                    f"fewer than min.insync.replicas {needed}"
                )
            )

    # -- writing -------------------------------------------------------------------------------

    def check_enough_replicas(self, batch: memoryview | None) -> None:
        """Raises NotEnoughReplicas where acks=all cannot be kept."""
        if not self._has_enough_replicas:
            # There may be enough for the next batch of the same producer: see `StorageRefusals`.
            if batch:
                with suppress(CorruptMessage):
                    self._note_refusal(read_header(batch))
            raise NotEnoughReplicas(
                f"{self.partition} has fewer replicas in sync than "
                f"min.insync.replicas {self.config.min_insync_replicas}"
            )

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append a batch that `intake` accepted; changes it in place. Raises a `BrokerError`."""
        if self.leadership is None:
            raise NotLeaderOrFollower(f"{self.partition} is led by another broker")
        try:
            partition_log = self.log
            if self._refusals is not None and self._refusals.holds_back(
                header, partition_log.producers
            ):
                raise _FollowsRefused(f"{self.partition}: an earlier batch was not stored")
            appended = partition_log.append_as_leader(batch, header, self.leader_epoch, now_ms)
        except _FollowsRefused:
            raise
        except LogNotReady:
            self._note_refusal(header)  # It may be ready for the next batch of the same producer.
            raise
        except KafkaStorageError:
            self._note_refusal(header)
            self._resign()
            raise
        if not appended.is_duplicate:
            self._after_append(partition_log, self.leadership)
        return appended

    def _note_refusal(self, header: BatchHeader) -> None:
        if header.producer_id >= 0 and not header.is_control:
            self._refusals = self._refusals or StorageRefusals()
            self._refusals.note(header)

    def _after_append(self, partition_log: PartitionLog, leadership: Leadership) -> None:
        if not self.touched:
            self._touch()
        if self._sync is None:
            self._sync_if_due(partition_log)
        if leadership.followers:
            self._update_watermark()
            self._waiting.tell_followers()
        elif self.config.flush_messages > 1:
            self._advance(partition_log.end_offset)

    def _resign(self) -> None:
        """The disk takes no more, or is out of use: let somebody lead who can write."""
        leadership = self.leadership
        if leadership is not None and leadership.may_resign():
            log.warning("asking for another leader", extra={"partition": str(self.partition)})
            self._around.propose(self, leadership.resign())

    def _touch(self) -> None:
        if not self.touched:
            self.touched = True
            self._around.on_append(self)

    def _update_watermark(self) -> None:
        leadership = self.leadership
        partition_log = self._log
        assert leadership is not None
        assert partition_log is not None
        if partition_log.state.offline_because is not None:
            return  # What lies there may be gone, and perhaps nobody else has it.
        self._advance(
            leadership.watermark(
                self._safe_end(partition_log),
                members_min=self.config.min_insync_replicas,
                leader_end=partition_log.end_offset,
                now_s=asyncio.get_running_loop().time(),
                lag_s_max=self._around.lag_s_max,
                is_live=self._around.is_live,
            )
        )

    def _safe_end(self, partition_log: PartitionLog) -> Offset:
        """What this replica vouches for: with a sync for each message, only what is on the disk.

        So, too, while a power loss could bring back what lay there before a truncation.
        """
        if self.config.flush_messages == 1 or not partition_log.truncation_is_safe:
            return partition_log.recovery_point
        return partition_log.end_offset

    def _advance(self, high_watermark: Offset) -> None:
        if high_watermark <= self._high_watermark:
            return
        self._high_watermark = high_watermark
        if not self.touched:
            self._touch()  # It is to be written down, however late it comes after the append.
        self._waiting.committed(high_watermark)

    def _sync_if_due(self, partition_log: PartitionLog) -> None:
        unsynced = partition_log.end_offset - partition_log.recovery_point
        is_due = unsynced >= self.config.flush_messages or not partition_log.truncation_is_safe
        if self._sync is None and is_due:
            self._sync = self._around.tasks.start(
                partial(self._sync_until_done, partition_log),
                name="log sync",
                on_failure=self._sync_failed,
            )

    def _sync_failed(self, error: Exception) -> None:
        """Nobody foresaw it: who waits must try again, and the next append syncs anew."""
        self._waiting.fail(KafkaStorageError(f"{self.partition} cannot be synced: {error!r}"))

    async def _sync_until_done(self, partition_log: PartitionLog) -> None:
        """One sync serves all that wait; those who come meanwhile are served by the next."""
        try:
            while self._closed is None:
                try:
                    if not await self.sync_once(partition_log):
                        return
                except KafkaStorageError as error:
                    self._waiting.fail(error)
                    return
                if self._in_office:
                    if len(self.leadership.replicas if self.leadership else ()) > 1:
                        self._update_watermark()
                    else:
                        self._advance(self._safe_end(partition_log))
                if self.config.flush_messages > 1:
                    return
        finally:
            self._sync = None

    async def sync_once(self, partition_log: PartitionLog) -> bool:
        """Sync what is there; whether there was anything. Raises KafkaStorageError."""
        if self._closed is not None:
            return False  # Deleted: its files are no longer where they were.
        return await sync_log(partition_log)

    @property
    def must_sync_first(self) -> bool:
        """Whether a follower has to sync before it may say with a fetch what it has."""
        return (
            self._is_ready
            and self._log is not None
            and (self.config.flush_messages == 1 or not self._log.truncation_is_safe)
        )

    def delete_before(self, offset: Offset) -> None:
        """Records below `offset`, which is committed, are gone for readers at once."""
        assert offset <= self.high_watermark
        self.log.advance_start(offset)
        self._touch()
        self._waiting.tell_all()

    def retaining(self, now_ms: int, gone: list[str]) -> Steps[None]:
        """Take out what is too old or too much; files to delete are added to `gone`. Raises
        KafkaStorageError.

        Even from a leader that a full disk keeps from its office: this makes room.
        """
        if self._log is None:
            self.prepare()
        if self._log is None or self._preparation is not None:
            return  # It has its turn at the next check.
        yield from applying_retention(self._log, self._high_watermark, now_ms, gone)

    @property
    def low_watermark(self) -> Offset:
        """Where the log starts on every replica in service."""
        starts = [self.log.start_offset]
        if self.leadership is not None:
            starts += [
                max(follower.start_offset, Offset(0))
                for node, follower in self.leadership.followers.items()
                if self._around.is_live(node, UNKNOWN_EPOCH)
            ]
        return min(starts)

    # -- followers -----------------------------------------------------------------------------

    def record_progress(
        self, node: NodeId, end_offset: Offset, start_offset: Offset, broker_epoch: int
    ) -> None:
        """A follower has everything below `end_offset`."""
        leadership = self.leadership
        assert leadership is not None
        partition_log = self.log
        started_at = leadership.followers[node].start_offset
        counts = leadership.record_progress(
            node,
            end_offset,
            start_offset=start_offset,
            broker_epoch=broker_epoch,
            leader_end=partition_log.end_offset,
            now_s=asyncio.get_running_loop().time(),
        )
        if not counts:
            return
        if start_offset > started_at:
            self._waiting.tell_readers()
        self._update_watermark()
        if start_offset < partition_log.start_offset:
            # What it has below the start cannot be compared any more, and may be another leader's:
            # first it must hear that this is deleted.
            return
        if leadership.joins(node, self._high_watermark, self._around.is_live):
            self._around.propose(self, leadership.expand(node))

    def drop_laggards(self) -> None:
        """Ask for those to be taken out of the in-sync set that have not kept up."""
        leadership = self.leadership
        if leadership is None or self._log is None or not self._in_office:
            return
        if self._log.state.offline_because is not None:
            self._resign()
            return
        leaving = leadership.laggards(
            self._log.end_offset, asyncio.get_running_loop().time(), self._around.lag_s_max
        )
        if leaving:
            self._around.propose(self, leadership.shrink(leaving))
        else:
            # Someone may have been waited for who was about to join and no longer keeps up.
            self._update_watermark()

    def live_brokers_changed(self) -> None:
        if self._in_office and self.leadership is not None and self.leadership.followers:
            self._update_watermark()

    # -- waiting -------------------------------------------------------------------------------

    def is_committed(self, end_offset: Offset) -> bool:
        return end_offset <= self._high_watermark

    def must_wait(self, acks: int) -> bool:
        """Whether an answer waits for the commit: with acks=all, or a sync for each message."""
        return acks == _ACKS_ALL or self.config.flush_messages == 1

    def when_committed(self, end_offset: Offset, on_commit: OnCommit) -> None:
        """Call `on_commit` once, when everything below `end_offset` is committed or cannot be."""
        if self._closed is not None:
            on_commit(self._closed)
        elif self.is_committed(end_offset):
            on_commit(None)
        else:
            self._waiting.add(end_offset, on_commit)

    def watch(self, watcher: Callable[[], None], *, also_uncommitted: bool = False) -> None:
        """Call `watcher` whenever there is more to read, until `unwatch`."""
        self._waiting.watch(watcher, also_uncommitted=also_uncommitted)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._waiting.unwatch(watcher)

    def close(self, reason: BrokerError | None = None) -> None:
        """Deleted, or the broker stops: nobody need wait here any more."""
        self._closed = reason or NotLeaderOrFollower(f"{self.partition} is led by another broker")
        self._waiting.fail(self._closed)
        self._waiting.tell_all()

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, offset: Offset, bytes_max: int, *, committed_only: bool, whole_batch: bool
    ) -> LogSlice | None:
        """Batches below the high watermark, or below the last stable offset."""
        partition_log = self.log
        limit = self.last_stable_offset if committed_only else self._high_watermark
        return partition_log.read(offset, bytes_max, limit, whole_batch=whole_batch)

    def read_for_follower(
        self, offset: Offset, bytes_max: int, *, whole_batch: bool
    ) -> LogSlice | None:
        """Batches up to the end, committed or not."""
        partition_log = self.log
        return partition_log.read(
            offset, bytes_max, partition_log.end_offset, whole_batch=whole_batch
        )

    # -- following -----------------------------------------------------------------------------

    def append_fetched(
        self, records: memoryview, leader_epoch: LeaderEpoch, watermark: Offset, start: Offset
    ) -> None:
        """Take in what the leader sent. Raises CorruptMessage, InvalidRecord, KafkaStorageError."""
        assert self.leadership is None
        partition_log = self.log
        room_at = _room_wanted(partition_log, records)
        if room_at is not None:
            # The bytes are kept for longer than this call.
            kept = memoryview(bytes(records))
            self._run(self._restarting_with(room_at, kept, leader_epoch, watermark, start))
        else:
            self._take_in(partition_log, records, leader_epoch, watermark, start)

    def _take_in(
        self,
        partition_log: PartitionLog,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        watermark: Offset,
        start: Offset,
    ) -> None:
        start = max(start, partition_log.start_offset)
        if records:
            self._touch()
            try:
                now_ms = self._around.clock.now_ms()
                partition_log.append_as_follower(records, leader_epoch, now_ms)
            except KafkaStorageError:
                # A full disk may have taken some of it.
                self._take_over_marks(partition_log, watermark, start)
                raise
        self._take_over_marks(partition_log, watermark, start)

    def _take_over_marks(
        self, partition_log: PartitionLog, watermark: Offset, start: Offset
    ) -> None:
        if start > partition_log.start_offset:
            partition_log.advance_start(min(start, partition_log.end_offset))
            self._touch()
        # What was deleted had been committed.
        known = min(max(watermark, partition_log.start_offset), partition_log.end_offset)
        if known > self._high_watermark:
            self._touch()
            self._advance(known)

    def diverge(self, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """The leader's log has `epoch` up to `end_offset`, and parts from this one at the latest
        there. Hazards 1 and 3: truncate by epoch, never by watermark, and then ask again."""
        assert self.leadership is None
        partition_log = self.log
        point = partition_log.epochs.truncation_point(epoch, end_offset, partition_log.end_offset)
        self._truncate(point)

    def start_over(self, start: Offset) -> None:
        """The leader has nothing left of what follows this log: go on where its log starts."""
        assert self.leadership is None
        partition_log = self.log
        if not partition_log.start_offset <= start < partition_log.end_offset:
            log.info("starting over", extra={"partition": str(self.partition), "at": start})
            self._run(self._restarting(start))

    def _restarting(self, start: Offset) -> Steps[None]:
        partition_log = self.log_as_it_is
        yield from after_each(partition_log.restarting_at(start), self._follow_end)
        yield from self._writing_shorter(partition_log)
        yield from self._syncing(partition_log)

    def _restarting_with(
        self,
        at: Offset,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        watermark: Offset,
        start: Offset,
    ) -> Steps[None]:
        """Begin anew with these records, unless the leader is another by then."""
        partition_log = self.log_as_it_is
        start = max(start, partition_log.start_offset)
        yield from after_each(partition_log.restarting_at(at), self._follow_end)
        yield from self._writing_shorter(partition_log)
        if self.leadership is None and self.leader_epoch == leader_epoch:
            self._take_in(partition_log, records, leader_epoch, watermark, start)
        yield from self._syncing(partition_log)

    def _truncate(self, offset: Offset) -> None:
        self._run(self._truncating(offset))

    def _truncating(self, offset: Offset) -> Steps[None]:
        """Once begun it goes on to its end, whoever leads by then: the leader that this log was
        compared with has said that what goes is not its own."""
        partition_log = self.log_as_it_is
        start, end = partition_log.start_offset, partition_log.end_offset
        losable_end = self._losable_end(partition_log)
        epochs = LeaderEpochs(partition_log.epochs.entries())
        committed = self._high_watermark
        yield from after_each(partition_log.truncating(offset), self._follow_end)
        partition_log.forget_epochs_beyond_end()
        log.info(
            "truncated",
            extra={
                "partition": str(self.partition),
                "from": end,
                "to": partition_log.end_offset,
                "epoch": self.leader_epoch,
            },
        )
        first = max(partition_log.end_offset, start)  # A batch that holds `offset` went whole.
        if first < losable_end:
            loss = lost_between(
                self.partition, epochs, first, losable_end, committed_below=committed
            )
            log.error("records are lost", extra={"loss": str(loss)})
            self._around.on_loss(loss)
        yield from self._writing_shorter(partition_log)
        yield from self._syncing(partition_log)

    def _follow_end(self) -> None:
        """The log became shorter: so did what is committed."""
        partition_log = self.log_as_it_is
        end_offset = min(self._high_watermark, partition_log.end_offset)
        self._high_watermark = max(partition_log.start_offset, end_offset)

    def _writing_shorter(self, partition_log: PartitionLog) -> Steps[None]:
        self._home.became_shorter(partition_log, self._high_watermark)
        self._touch()
        yield from self._home.writing_due()

    def _losable_end(self, partition_log: PartitionLog) -> Offset:
        """Up to where the records are, or may be, committed: as far as this replica knows. If all
        of the log is older than an unclean election, any of it may have been: a leader that was
        killed knows only the watermark that it last wrote down, a follower what it last heard."""
        is_older = partition_log.epochs.latest < self._unclean_epoch
        return partition_log.end_offset if is_older else self._high_watermark


async def wait_until_ready(partitions: Iterable[Partition], within_s: float) -> None:
    """Wait until these logs can be used, or cannot be: whoever uses them is told."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            for partition in partitions:
                with suppress(BrokerError):
                    if not partition.prepare():
                        await partition.settled()


def _room_wanted(partition_log: PartitionLog, records: memoryview) -> Offset | None:
    """A log that starts within a batch, since records were deleted, is copied with all of that
    batch: where an empty copy must begin then. None: it is right as it is."""
    if not records or partition_log.start_offset != partition_log.end_offset:
        return None
    _, first = next(batches(records))
    if first.base_offset < partition_log.end_offset <= first.last_offset:
        return Offset(first.base_offset)
    return None
