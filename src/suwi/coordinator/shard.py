"""One shard of a coordinator: the state that lies in one partition of its internal topic.

Every replica applies the records below its own high watermark as it rises. The leader's shard
takes events (`submit`): a pure machine decides, its records are replayed at once and appended
together with others of the same turn of the loop; replies wait until all that they rest on is
committed. State that may differ from the log is dropped and loaded again: there is no undo.
Invariants: `applied` is the offset up to which the log has been replayed; events are handled only
by a leader whose log is replayed and committed up to the end that it had when it was elected.
An exception in here fails this shard only (hazard G26).
"""

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from typing import Any, Final

from suwi.coordinator.decision import (
    Decision,
    TimerKey,
    Token,
    TransactionalProducer,
)
from suwi.coordinator.log_reader import LogReader, until_committed
from suwi.coordinator.pending_replies import PendingReplies
from suwi.coordinator.record import CoordinatorRecord
from suwi.coordinator.record_facts import RecordFacts
from suwi.coordinator.record_queue import Queued, RecordQueue, encode
from suwi.coordinator.shard_context import Activation, Decide, ShardContext, Status
from suwi.coordinator.timers import Timers
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import build_batch
from suwi.records.record import Marker, MarkerType
from suwi.replica.partition import Partition
from suwi.replica.partition_transactions import TxnMarker

log = logging.getLogger(__name__)

_RETRY_TIMER_S: Final = 1.0
_PAUSE: Final = ("pause",)
"""The timer that looks whether a pause is over."""
_RELOAD_S_MIN: Final = 1.0
_RELOAD_S_MAX: Final = 60.0
_ACTIVATIONS_MAX: Final = 20


class Shard:
    """Size: roles, loading and events change the same state (status, offsets, queue) and must be
    read together; the log, timers and replies are elsewhere."""

    def __init__(self, partition: Partition, context: ShardContext) -> None:
        self.partition = partition
        self.status = Status.FOLLOWING
        self.epoch = LeaderEpoch(-1)
        self.machine = context.new_machine()
        self.loads = 0
        """How often the whole log was read."""
        self.activations: deque[Activation] = deque(maxlen=_ACTIVATIONS_MAX)
        """When this replica began to serve, the newest last."""
        self._context = context
        self._reader: LogReader | None = None
        self._timers = Timers(self._expire)
        self._replies = PendingReplies(context.commit_timeout_s, context.on_notice)
        self._queue = RecordQueue()
        self._next_offset = Offset(0)
        """That of the next record to be queued."""
        self._committed_end = Offset(0)
        self._is_flushing = False
        """Whether an append waits for its commit, or the queue will be flushed in this turn."""
        self._task: asyncio.Task[None] | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._reload_s = _RELOAD_S_MIN
        """How long it stays out of service after its next failure."""
        self._active_since_s = 0.0
        self._role_changed = asyncio.Event()
        partition.watch(self._wake)
        self._wake()

    # -- roles -----------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch) -> None:
        """The partition is led here from `epoch` on; again, if it was out of service meanwhile."""
        goes_on = epoch == self.epoch and self.status is not Status.FOLLOWING
        if epoch < self.epoch or goes_on or self.status is Status.CLOSED:
            return
        self._stop_serving(NotCoordinator(f"{self.partition.partition} has a new leader epoch"))
        self.epoch = epoch
        self.status = Status.LOADING
        self._role_changed.set()
        self._wake()

    def follow(self, epoch: LeaderEpoch) -> None:
        """Another broker leads, or nobody does."""
        if epoch < self.epoch or self.status is Status.CLOSED:
            return
        self.epoch = epoch
        self._stop_serving(NotCoordinator(f"{self.partition.partition} is led by another broker"))
        self.status = Status.FOLLOWING
        self._role_changed.set()
        self._wake()

    def close(self) -> None:
        """Deleted or moved away, or the broker stops."""
        self._stop_serving(NotCoordinator(f"{self.partition.partition} is gone"))
        self.status = Status.CLOSED
        self.partition.unwatch(self._wake)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._reload is not None:
            self._reload.cancel()

    def _stop_serving(self, error: BrokerError) -> None:
        was_active, self.status = self.status is Status.ACTIVE, Status.FOLLOWING
        self._timers.clear()
        is_ahead = was_active and self._next_offset > self._committed_end
        self._queue.clear()
        self._is_flushing = False
        self._replies.fail_all(error)
        if is_ahead:
            self._reset()  # What was replayed may not stay in the log.
        elif was_active:
            self.machine.resigned()
            assert self._reader is not None
            self._reader.applied = self._next_offset

    def _reset(self) -> None:
        """Forget everything; the log is read again from its start."""
        self.machine = self._context.new_machine()
        self._reader = None

    def _fail(self, error: Exception) -> None:
        """A record that cannot be replayed, or a bug: this shard is out of service for a while.
        Longer each time, until it has served without a failure for as long as that can be."""
        self._context.on_failure(self.partition.partition, error)
        loop = asyncio.get_running_loop()
        if self.status is Status.ACTIVE and loop.time() - self._active_since_s >= _RELOAD_S_MAX:
            self._reload_s = _RELOAD_S_MIN
        self._stop_serving(CoordinatorNotAvailable("the coordinator has failed"))
        self._reset()
        self.status = Status.FAILED
        if self._reload is not None:
            self._reload.cancel()
        self._reload = loop.call_later(self._reload_s, self._resume_if_failed)
        self._reload_s = min(2 * self._reload_s, _RELOAD_S_MAX)

    def _resume_if_failed(self) -> None:
        """G10: loading is retried. A change of its role may have come first."""
        if self.status is Status.FAILED:
            self._resume()

    def _resume(self) -> None:
        leads = self.partition.is_leader and self.partition.leader_epoch == self.epoch
        self.status = Status.LOADING if leads else Status.FOLLOWING
        self._wake()

    # -- applying the log ------------------------------------------------------------------------

    def _wake(self) -> None:
        """There may be more to apply."""
        if self._task is None and self.status in (Status.FOLLOWING, Status.LOADING):
            if self.status is Status.FOLLOWING and not self._lags():
                if self.partition.replica_log.ready_log is None:
                    # Its high watermark may not change any more.
                    self.partition.replica_log.when_ready(self._wake)
                return
            self._task = self._context.tasks.start(
                self._apply, name="coordinator replay", on_failure=self._apply_failed
            )

    def _lags(self) -> bool:
        partition = self.partition
        if partition.replica_log.ready_log is None:
            return False
        reader = self._reader
        return reader is None or reader.lags_behind(partition.watermark_as_it_is)

    def _apply_failed(self, error: Exception) -> None:
        self._task = None
        if self.status is not Status.CLOSED:
            self._fail(error)

    async def _apply(self) -> None:
        """Replay what is committed; as a leader all there is, and begin to serve."""
        while self.status in (Status.FOLLOWING, Status.LOADING):
            status, epoch = self.status, self.epoch
            self._role_changed.clear()
            try:
                done = await self._apply_once(status is Status.LOADING)
            except BrokerError as error:
                # The log is out of reach: its replica hears of it, and another role or try follows.
                log.warning("coordinator waits for its log", extra=self._fields(error))
                await self._wait_for_a_role()
                continue
            if (status, epoch) != (self.status, self.epoch):
                continue
            if status is Status.LOADING and done:
                self._activate()
                if self.status is Status.LOADING:
                    await self._wait_for_a_role()  # Its partition leads no more.
            elif done and not self._lags():
                self._reload_s = _RELOAD_S_MIN
                break
        self._task = None

    async def _wait_for_a_role(self) -> None:
        """One that came since this try began counts; or for a while, before another try."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._role_changed.wait(), _RETRY_TIMER_S)

    async def _apply_once(self, leads: bool) -> bool:
        """Whether all has been replayed that was there when this began."""
        partition = self.partition
        if not partition.replica_log.prepare():
            await partition.replica_log.wait_for_preparation()
            return False
        partition_log = partition.log
        if self._reader is None or self._reader.is_void(partition_log):
            self._reset()
            self.loads += 1
            self._reader = LogReader(partition_log, self._context.codec)
        reader, machine = self._reader, self.machine
        end = partition_log.end_offset if leads else partition.high_watermark
        if leads:
            log.info("coordinator loading", extra={**self._fields(None), "from": reader.applied})
        committed = partition.high_watermark
        await reader.replay(machine, end, committed, lambda: machine is self.machine)
        if leads and machine is self.machine:
            await until_committed(partition, end)
            machine.committed(end)
        return machine is self.machine and reader.applied >= end

    def _activate(self) -> None:
        """Begin to serve. No await since the end of the log was reached."""
        assert self._reader is not None
        partition = self.partition
        if not partition.is_leader or partition.leader_epoch != self.epoch:
            return
        self.status = Status.ACTIVE
        self._active_since_s = asyncio.get_running_loop().time()
        self._next_offset = self._committed_end = self._reader.applied
        self.activations.append(Activation(self.epoch, self._context.clock.now_ms()))
        log.info("coordinator serves", extra={**self._fields(None), "epoch": self.epoch})
        self._handle(lambda machine, now_ms, decision: machine.elected(now_ms, decision))

    # -- events ----------------------------------------------------------------------------------

    def check_active(self) -> None:
        """Raises why requests cannot be served here now."""
        if self.status is Status.ACTIVE:
            return
        if self.status is Status.LOADING:
            raise CoordinatorLoadInProgress(f"{self.partition.partition} is being loaded")
        if self.status is Status.FAILED:
            raise CoordinatorNotAvailable(f"{self.partition.partition} has failed")
        raise NotCoordinator(f"{self.partition.partition} is led by another broker")

    def check_readable(self) -> None:
        """Raises why a reply that needs no append could be out of date."""
        self.check_active()
        leader_state = self.partition.leader_state
        now_s = asyncio.get_running_loop().time()
        if leader_state is None or not leader_state.isr_has_fetched(
            now_s, self._context.isr_silence_s_max
        ):
            raise NotCoordinator(f"another broker may lead {self.partition.partition}")

    def submit(
        self, decide: Decide, token: Token, *, writes: bool = True, prolongs: bool = False
    ) -> None:
        """Handle one request. `token` gets the reply, now or later. Raises what refuses it now.

        `writes`: it may append, so it is refused where an append would be. `prolongs`: its reply
        tells a member that it still is one, so it is refused where another broker may know better.
        """
        self.check_active()
        try:
            if prolongs:
                self.check_readable()
            if writes:
                self.partition.check_enough_replicas()
        except BrokerError:
            self._update_pause()
            raise
        if self._timers.is_paused:
            self._update_pause()
        self._replies.add(token)
        self._handle(decide)

    def append_marker(self, marker: TxnMarker, token: Token) -> None:
        """End a transaction. `token` hears of it when the marker is applied and committed (T13).
        Raises what refuses it now; then nothing is appended."""
        self.check_active()
        now_ms = self._context.clock.now_ms()
        self._flush_now()
        end = self.partition.transactions.append_marker(marker, now_ms)
        self._replies.add(token)
        if end is not None:
            kind = MarkerType.COMMIT if marker.commits else MarkerType.ABORT
            producer = marker.producer_id, marker.producer_epoch, True
            facts = RecordFacts(self._next_offset, False, *producer)
            try:
                self.machine.replay_marker(Marker(kind, marker.coordinator_epoch), facts)
            except Exception as error:
                self._fail(error)
                return
            self._appended(Offset(self._next_offset + 1), end)
        self._reply([(token, marker)])

    def tell(self, decide: Decide) -> None:
        """An event that nobody waits for."""
        if self.status is Status.ACTIVE:
            self._handle(decide)

    def _expire(self, key: TimerKey) -> None:
        is_paused = self._update_pause()
        if key == _PAUSE:
            return
        if is_paused and not self.machine.only_replies(key):
            self._timers.arm(key, _RETRY_TIMER_S)
            return
        self._handle(lambda machine, now_ms, decision: machine.expired(key, now_ms, decision))

    def _update_pause(self) -> bool:
        """Whether heartbeats of either protocol are refused now: that must cost no member its
        session."""
        try:
            self.check_readable()
            self.partition.check_enough_replicas()
        except BrokerError:
            self._timers.pause()
            self._timers.arm(_PAUSE, _RETRY_TIMER_S)
        else:
            self._timers.resume()
        return self._timers.is_paused

    def _handle(self, decide: Decide) -> None:
        try:
            self._handle_event(decide)
        except Exception as error:
            self._fail(error)  # A bug. What is in the log is whole; what was decided is dropped.

    def _handle_event(self, decide: Decide) -> None:
        now_ms = self._context.clock.now_ms()
        decision = Decision(batch_bytes_max=self._batch_bytes_max)
        decide(self.machine, now_ms, decision)
        if decision.records:
            try:
                queued = encode(decision, self._context.codec, now_ms)
                if decision.producer is not None:
                    self._append_transactional(decision.producer, queued)
            except BrokerError as error:
                # Nothing has been replayed: whoever asked for it is told, and nobody else.
                log.warning("coordinator records refused", extra=self._fields(error))
                self._replies.refuse(decision.replies, error)
                decision.replies.clear()
                decision.notices_when_committed.clear()
                for key in [key for key, at_ms in decision.timers.items() if at_ms is None]:
                    del decision.timers[key]  # What was to end goes on.
                if self.status is not Status.ACTIVE:
                    return
            else:
                self._replay(decision.records, decision.producer)
                if decision.producer is None:
                    self._queue.add(queued)
                    self._flush_soon()
                else:
                    self._appended(self._next_offset, self.partition.log.end_offset)
        for key, deadline_ms in decision.timers.items():
            if deadline_ms is None:
                self._timers.cancel(key)
            else:
                self._timers.arm(key, (deadline_ms - now_ms) / 1000)
        for notice in decision.notices:
            self._context.on_notice(notice)
        if decision.notices_when_committed:
            self._replies.notify_at(self._next_offset, decision.notices_when_committed)
            self._replies.notify(self._committed_end)
        if decision.replies:
            self._reply(decision.replies)

    def _replay(
        self, records: list[CoordinatorRecord], producer: TransactionalProducer | None
    ) -> None:
        of_producer = () if producer is None else (producer[0], producer[1], True)
        for record in records:
            self.machine.replay(record, RecordFacts(self._next_offset, False, *of_producer))
            self._next_offset = Offset(self._next_offset + 1)

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush, self.machine)

    @property
    def _batch_bytes_max(self) -> int:
        return self.partition.config.max_message_bytes - HEADER_BYTES

    # -- appending -------------------------------------------------------------------------------

    def _flush(self, machine: Any) -> None:
        """Append what is queued, as few batches as their size allows."""
        if not self._serves_with(machine):
            return
        end = self._committed_end
        try:
            while self._queue:
                end = self._append_batch()
        except Exception as error:
            self._lose(error)
            return
        self.partition.when_committed(end, partial(self._on_commit, machine, end))

    def _flush_now(self) -> None:
        """Append what was queued before a transactional write. Raises if that has failed."""
        if self._queue:
            self._flush(self.machine)
            self.check_active()

    def _append_transactional(self, producer: TransactionalProducer, queued: list[Queued]) -> None:
        """A batch of its own: what is gathered with others cannot be aborted."""
        (batch_of,) = queued
        self._flush_now()
        producer_id, producer_epoch, guard = producer
        batch = memoryview(
            build_batch(
                batch_of.records,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=True,
            )
        )
        now_ms = batch_of.records[0].timestamp
        self.partition.transactions.append(batch, read_header(batch), now_ms, guard)

    def _appended(self, next_offset: Offset, end: Offset) -> None:
        """What was appended past the queue has been replayed."""
        assert next_offset == end, "another writer"
        self._next_offset = end
        self.partition.when_committed(end, partial(self._on_commit, self.machine, end))

    def _serves_with(self, machine: Any) -> bool:
        """Whether that is still the state; what was queued is dropped together with it."""
        return self.status is Status.ACTIVE and machine is self.machine

    def _append_batch(self) -> Offset:
        records, pieces = self._queue.next_batch(self._batch_bytes_max)
        batch = memoryview(build_batch(records))
        appended = self.partition.append(batch, read_header(batch), records[0].timestamp)
        self._queue.drop(pieces)
        end = self._next_offset - len(self._queue)
        assert appended.base_offset + len(records) == end, "another writer"
        return Offset(appended.base_offset + len(records))

    def _on_commit(self, machine: Any, end: Offset, error: BrokerError | None) -> None:
        if not self._serves_with(machine):
            return
        if error is not None:
            self._lose(error)
            return
        self._committed_end = end
        self.machine.committed(end)
        self._replies.committed(end)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush, machine)
        else:
            self._is_flushing = False

    def _lose(self, error: Exception) -> None:
        """What was replayed is not in the log: load again, if this is still the leader."""
        if not isinstance(error, BrokerError):
            self._fail(error)
            return
        log.warning("coordinator append failed", extra=self._fields(error))
        self._stop_serving(error)
        self._reset()
        self._resume()

    def _reply(self, replies: list[tuple[Token, Any]]) -> None:
        """At once if everything that was replayed is committed."""
        if self._committed_end >= self._next_offset:
            self._replies.deliver(replies)
        else:
            self._replies.deliver_at(self._next_offset, replies)

    def _fields(self, reason: object) -> dict[str, Any]:
        fields: dict[str, Any] = {"partition": str(self.partition.partition)}
        if reason is not None:
            fields["reason"] = str(reason)
        return fields
