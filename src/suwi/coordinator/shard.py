"""One shard of a coordinator: the state that lies in one partition of its internal topic.

`ShardReplica` follows the log on every replica. The leader's shard takes events (`submit`): a pure
machine decides, its records are replayed at once and appended together with others of the same turn
of the loop; replies wait until all that they rest on is committed. There is no undo: after a
failure the state is loaded again.
An event with many records, or one that is decided in slices, takes several turns: it is appended as
a whole and then replayed, and the shard is closed until then. Nothing else is decided in between;
what arrives waits, in its order.
Invariant: what is in memory is what a replay of the log gives (H0), except while it is closed.
An exception in here fails this shard only (hazard G26).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from typing import Any, Final

from suwi.coordinator.appender import Appender
from suwi.coordinator.decision import (
    RECORDS_PER_SLICE,
    Decision,
    Slices,
    TimerKey,
    Token,
    TransactionalProducer,
)
from suwi.coordinator.pending_replies import PendingReplies
from suwi.coordinator.record import CoordinatorRecord
from suwi.coordinator.record_facts import RecordFacts
from suwi.coordinator.record_queue import RecordQueue
from suwi.coordinator.shard_context import Activation, Decide, ShardContext, Status
from suwi.coordinator.shard_replica import ShardReplica
from suwi.coordinator.timers import Timers
from suwi.env.slices import run_to_end
from suwi.model.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from suwi.model.ids import Offset
from suwi.records.record import Marker, MarkerType
from suwi.replica.partition import Partition
from suwi.replica.partition_transactions import TxnMarker

log = logging.getLogger(__name__)

_RETRY_TIMER_S: Final = 1.0
_PAUSE: Final = ("pause",)
"""The timer that looks whether a pause is over."""
_RETRY_CLOSED_S: Final = 0.05
_EVENTS_PER_SLICE: Final = 32


class Shard(ShardReplica):
    """Size: decisions, appends and replies change the same state and must be read together."""

    def __init__(self, partition: Partition, context: ShardContext) -> None:
        super().__init__(partition, context)
        self._timers = Timers(self._expire)
        self._replies = PendingReplies(context.commit_timeout_s, context.on_notice)
        self._queue = RecordQueue()
        self._appender = Appender(partition, context.codec)
        self._later: deque[Callable[[], Slices]] | None = None
        """While a large event goes on, the events that wait for its end."""
        self._is_replaying = False
        self._next_offset = Offset(0)
        """That of the next record to be queued."""
        self._committed_end = Offset(0)
        self._is_flushing = False
        """Whether an append waits for its commit, or the queue will be flushed in this turn."""
        partition.watch(self._wake)
        self._wake()

    def _stop_serving(self, error: BrokerError) -> None:
        was_active, self.status = self.status is Status.ACTIVE, Status.FOLLOWING
        self._timers.clear()
        is_ahead = was_active and (self._is_closed or self._next_offset > self._committed_end)
        self._later = None
        self._is_replaying = False
        self._queue.clear()
        self._is_flushing = False
        self._replies.fail_all(error)
        if is_ahead:
            self._reset()  # What was replayed may not stay in the log.
        elif was_active:
            self.machine.resigned()
            assert self._reader is not None
            self._reader.applied = self._next_offset

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

    def until_readable(self) -> Slices:
        """Waits for the end of a replay: nobody reads half of an event. Raises why a reply that
        needs no append could be out of date."""
        self.check_active()
        while self._is_replaying:
            yield
            self.check_active()
        self._check_isr_fetches()

    def _check_isr_fetches(self) -> None:
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

        `writes`: it may append, so it is refused where an append would be. `prolongs`: no append
        confirms its reply, for example that a member still is one, so it is refused where another
        broker may know better.
        """
        self.check_active()
        if self._later is not None:
            self._replies.add(token)
            self._later.append(partial(self._submit_late, decide, token, writes, prolongs))
            return
        self._admit(writes=writes, prolongs=prolongs)
        self._replies.add(token)
        self._handle(decide)

    def _admit(self, *, writes: bool, prolongs: bool) -> None:
        try:
            if prolongs:
                self._check_isr_fetches()
            if writes:
                self.partition.check_enough_replicas()
        except BrokerError:
            self._update_pause()
            raise
        if self._timers.is_paused:
            self._update_pause()

    def _submit_late(self, decide: Decide, token: Token, writes: bool, prolongs: bool) -> Slices:
        try:
            self._admit(writes=writes, prolongs=prolongs)
        except BrokerError as error:
            self._replies.refuse([(token, None)], error)
            return iter(())
        return self._steps(decide)

    def append_marker(
        self, marker: TxnMarker, token: Token, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """End a transaction. `token` hears of it when the marker is applied and committed (T13).
        Raises what refuses it now; then nothing is appended. `is_wanted` is asked in the step of
        the append, and may raise a `BrokerError`; without it the token hears when all there is is
        committed."""
        self.check_active()
        if self._later is not None:
            self._replies.add(token)
            self._later.append(partial(self._mark_late, marker, token, is_wanted))
            return
        end = self._append_marker(marker, is_wanted)
        self._replies.add(token)
        self._begin(self._marker_steps(marker, token, end))

    def _append_marker(self, marker: TxnMarker, is_wanted: Callable[[], bool]) -> Offset | None:
        self._flush_now()
        if not is_wanted():
            return None
        return self.partition.transactions.append_marker(marker, self._context.clock.now_ms())

    def _mark_late(self, marker: TxnMarker, token: Token, is_wanted: Callable[[], bool]) -> Slices:
        try:
            end = self._append_marker(marker, is_wanted)
        except BrokerError as error:
            self._replies.refuse([(token, None)], error)
            return iter(())
        return self._marker_steps(marker, token, end)

    def _marker_steps(self, marker: TxnMarker, token: Token, end: Offset | None) -> Slices:
        if end is not None:
            kind = MarkerType.COMMIT if marker.commits else MarkerType.ABORT
            producer = marker.producer_id, marker.producer_epoch, True
            facts = RecordFacts(self._next_offset, False, *producer)
            replaying = self.machine.replaying_marker(Marker(kind, marker.coordinator_epoch), facts)
            yield from self._replaying(replaying)
            self._appended(Offset(self._next_offset + 1), end)
        self._reply([(token, marker)])

    @property
    def _is_closed(self) -> bool:
        return self._later is not None

    def tell(self, decide: Decide) -> None:
        """An event that nobody waits for."""
        if self.status is Status.ACTIVE:
            self._handle(decide)

    def _expire(self, key: TimerKey) -> None:
        if self._is_closed:
            # What waits may be the heartbeat that puts it off.
            self._timers.arm(key, _RETRY_CLOSED_S)
            return
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
            self._check_isr_fetches()
            self.partition.check_enough_replicas()
        except BrokerError:
            self._timers.pause()
            self._timers.arm(_PAUSE, _RETRY_TIMER_S)
        else:
            self._timers.resume()
        return self._timers.is_paused

    def _handle(self, decide: Decide) -> None:
        if self._later is not None:
            self._later.append(partial(self._steps, decide))
        else:
            self._begin(self._steps(decide))

    def _begin(self, steps: Slices) -> None:
        """Most events have one slice. Of a larger one the others follow, and the shard is closed
        until then: what comes later waits, in its order."""
        try:
            next(steps)
        except StopIteration:
            return
        except Exception as error:
            self._fail(error)  # A bug. What is in the log is whole; what was decided is dropped.
            return
        self._later = deque()
        self._context.tasks.start(
            partial(self._go_through, self.machine, steps, self._later),
            name="coordinator event",
            on_failure=self._fail,
        )

    async def _go_through(
        self, machine: Any, steps: Slices, later: deque[Callable[[], Slices]]
    ) -> None:
        """The rest of an event, then all that came later. It ends early with the state."""
        events = 0
        await asyncio.sleep(0)
        try:
            while self._serves_with(machine):
                for _ in steps:
                    await asyncio.sleep(0)
                    if not self._serves_with(machine):
                        return
                if not later:
                    break
                steps = later.popleft()()
                events += 1
                if events % _EVENTS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            if self._serves_with(machine):
                self._fail(error)
        if self._serves_with(machine):
            self._later = None

    def _steps(self, decide: Decide) -> Slices:
        """One event, from its decision to its replies."""
        now_ms = self._context.clock.now_ms()
        decision = Decision(batch_bytes_max=self._appender.batch_bytes_max)
        is_large = False
        for _ in decide(self.machine, now_ms, decision) or ():
            is_large = True  # To write and to replay it takes as long.
            yield
        if decision.records:
            appended = Offset(self._next_offset)
            try:
                if is_large or decision.is_large:
                    yield from self._write_large(decision, now_ms)
                else:
                    self._write(decision, now_ms)
            except BrokerError as error:
                log_end = self.partition.log_as_it_is.end_offset
                if self._next_offset != appended and self._next_offset != log_end:
                    self._lose(error)  # A part of it is in the log, and not replayed.
                else:
                    self._refuse(decision, error)
                if self.status is not Status.ACTIVE:
                    return
        self._finish(decision, now_ms)

    def _refuse(self, decision: Decision, error: BrokerError) -> None:
        """Nothing has been replayed: whoever asked for it is told, and nobody else."""
        log.warning("coordinator records refused", extra=self._fields(error))
        self._replies.refuse(decision.replies, error)
        decision.replies.clear()
        decision.notices_when_committed.clear()
        for key in [key for key, at_ms in decision.timers.items() if at_ms is None]:
            del decision.timers[key]  # What was to end goes on.

    def _finish(self, decision: Decision, now_ms: int) -> None:
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

    # -- appending -------------------------------------------------------------------------------

    def _write(self, decision: Decision, now_ms: int) -> None:
        """Replay the records, and queue or append them. Raises what refuses them."""
        queued = self._appender.encode(decision, now_ms)
        producer = decision.producer
        if producer is None:
            run_to_end(self._replay(decision.records, None))
            self._queue.add(queued)
            self._flush_soon()
            return
        self._flush_now()
        # A batch of its own: what is gathered with others cannot be aborted.
        (batch_of,) = queued
        end = self._appender.append(batch_of.records, producer)
        run_to_end(self._replay(decision.records, producer))
        self._appended(self._next_offset, end)

    def _write_large(self, decision: Decision, now_ms: int) -> Generator[None, None, None]:
        """As `_write`, in slices, and appended before it is replayed."""
        pieces = yield from self._appender.encoding(decision, now_ms)
        self._flush_now()
        records = iter(decision.records)
        for piece in pieces:
            if decision.replies:  # What nobody asks for again must not be lost.
                self.partition.check_enough_replicas()
            end = yield from self._appender.appending(piece.records, decision.producer)
            of_piece = list(islice(records, len(piece.records)))
            piece.records.clear()  # To free all memory of a large event at its end takes long.
            yield from self._replaying(self._replay(of_piece, decision.producer))
            self._appended(self._next_offset, end)

    def _replaying(self, replay: Slices) -> Slices:
        """Nobody may read what is replayed in part."""
        for _ in replay:
            self._is_replaying = True
            yield
        self._is_replaying = False

    def _replay(
        self, records: list[CoordinatorRecord], producer: TransactionalProducer | None
    ) -> Generator[None, None, None]:
        of_producer = () if producer is None else (producer[0], producer[1], True)
        for number, record in enumerate(records, 1):
            facts = RecordFacts(self._next_offset, False, *of_producer)
            yield from self.machine.replay(record, facts) or ()
            self._next_offset = Offset(self._next_offset + 1)
            if number % RECORDS_PER_SLICE == 0:
                yield

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush, self.machine)

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

    def _appended(self, next_offset: Offset, end: Offset) -> None:
        """What was appended past the queue has been replayed."""
        assert next_offset == end, "another writer"
        self._next_offset = end
        self.partition.when_committed(end, partial(self._on_commit, self.machine, end))

    def _serves_with(self, machine: Any) -> bool:
        """Whether that is still the state; what was queued is dropped together with it."""
        return self.status is Status.ACTIVE and machine is self.machine

    def _append_batch(self) -> Offset:
        records, pieces = self._queue.next_batch(self._appender.batch_bytes_max)
        end = self._appender.append(records)
        self._queue.drop(pieces)
        assert end == self._next_offset - len(self._queue), "another writer"
        return end

    def _on_commit(self, machine: Any, end: Offset, error: BrokerError | None) -> None:
        if not self._serves_with(machine):
            return
        if error is not None:
            self._lose(error)
            return
        self._settle(machine, end)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush, machine)
        else:
            self._is_flushing = False

    def _settle(self, machine: Any, end: Offset) -> None:
        """What is committed is visible, and then its replies leave."""
        if not self._serves_with(machine):
            return
        if machine.committed(end):
            asyncio.get_running_loop().call_soon(self._settle, machine, end)
            return
        self._committed_end = max(self._committed_end, end)
        self._replies.committed(self._committed_end)

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
