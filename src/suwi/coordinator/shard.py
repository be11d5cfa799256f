"""One shard of a coordinator: the state that lies in one partition of its internal topic.

`ShardReplica` follows the log on every replica. The leader's shard takes calls (`submit`): a pure
machine decides, its records are replayed at once, and appended together with others of the same
iteration of the event loop. Replies wait until all records that they depend on are committed. There
is no undo: after a failure the state is loaded again.
An event with many records, or one that is decided in slices, takes several iterations: it is
appended as a whole and then replayed, and the shard is closed until then. Nothing else is decided
meanwhile; calls that arrive wait in their order.
Invariant: what is in memory is what a replay of the log gives (H0), except while it is closed.
An exception in here fails this shard only (hazard G26).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from suwi.coordinator.appender import Appender, RecordQueue
from suwi.coordinator.event import (
    RECORDS_PER_SLICE,
    Asked,
    Call,
    Event,
    M,
    Machine,
    TimerKey,
    TransactionalProducer,
)
from suwi.coordinator.pending_replies import PendingReplies
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.coordinator.shard_replica import Activation, ShardContext, ShardReplica, Status
from suwi.coordinator.timers import Timers
from suwi.env.slices import Slices, run_to_end
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
"""The timer that checks whether a pause is over."""
_RETRY_CLOSED_S: Final = 0.05
_EVENTS_PER_SLICE: Final = 32


class _MarkerToAppend(NamedTuple):
    marker: TxnMarker
    is_wanted: Callable[[], bool]


_Later: TypeAlias = deque[tuple[Callable[[Call[M]], Slices[None]], Call[M]]]
"""Calls that wait, each with the method that begins it."""


class Shard(ShardReplica[M]):
    def __init__(self, partition: Partition, context: ShardContext[M]) -> None:
        super().__init__(partition, context)
        self._timers = Timers(self._expire)
        self._replies = PendingReplies(context.commit_timeout_s, context.on_notice)
        self._queue = RecordQueue()
        self._appender = Appender(partition, context.codec)
        self._later: _Later[M] | None = None
        """While a large event goes on, the events that wait for its end."""
        self._is_replaying = False
        self._next_offset = Offset(0)
        """The offset of the next record to be queued."""
        self._committed_end = Offset(0)
        self._is_flushing = False
        """Whether an append waits for its commit, or the queue will be flushed in this iteration of
        the loop."""
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
            self._reset()  # The log may lose what was replayed.
        elif was_active:
            self.machine.resigned()
            assert self._reader is not None
            self._reader.applied = self._next_offset

    def _activate(self) -> None:
        """Begin to serve. Nothing was awaited since the end of the log was reached."""
        assert self._reader is not None
        partition = self.partition
        if not partition.is_leader or partition.leader_epoch != self.epoch:
            return
        self.status = Status.ACTIVE
        self._active_since_s = asyncio.get_running_loop().time()
        self._next_offset = self._committed_end = self._reader.applied
        self.activations.append(Activation(self.epoch, self._context.clock.now_ms()))
        log.info("coordinator serves", extra={**self._fields(None), "epoch": self.epoch})
        self._handle(Call(_elected, None))

    # -- events ----------------------------------------------------------------------------------

    def check_active(self) -> None:
        """Raises a `BrokerError` if requests cannot be served here now."""
        if self.status is Status.ACTIVE:
            return
        if self.status is Status.LOADING:
            raise CoordinatorLoadInProgress(f"{self.partition.partition} is being loaded")
        if self.status is Status.FAILED:
            raise CoordinatorNotAvailable(f"{self.partition.partition} has failed")
        raise NotCoordinator(f"{self.partition.partition} is led by another broker")

    def until_readable(self) -> Slices[None]:
        """Waits for the end of a replay, so that nobody reads half of an event. Raises a
        `BrokerError` if a reply that needs no append could be out of date."""
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

    def submit(self, call: Call[M]) -> None:
        """Handle one request; the call gets its reply now or later. Raises a `BrokerError` if the
        request is refused at once."""
        self.check_active()
        if self._later is not None:
            self._replies.add(call)
            self._later.append((self._submit_late, call))
            return
        self._admit(call)
        self._replies.add(call)
        self._begin(self._steps(call))

    def _admit(self, call: Call[M]) -> None:
        try:
            if call.prolongs:
                self._check_isr_fetches()
            if call.writes:
                self.partition.check_enough_replicas()
        except BrokerError:
            self._update_pause()
            raise
        if self._timers.is_paused:
            self._update_pause()

    def _submit_late(self, call: Call[M]) -> Slices[None]:
        try:
            self._admit(call)
        except BrokerError as error:
            self._replies.refuse([(call, None)], error)
        else:
            yield from self._steps(call)

    def append_marker(
        self, marker: TxnMarker, is_wanted: Callable[[], bool] = lambda: True
    ) -> Call[M]:
        """End a transaction. The call is done when the marker is applied and committed (T13).
        Raises what refuses it now; then nothing is appended. `is_wanted` is asked in the step of
        the append, and may raise a `BrokerError`. If it is false, the call is done when all that
        the partition has is committed."""
        self.check_active()
        call: Call[M] = Call(_decides_nothing, _MarkerToAppend(marker, is_wanted))
        if self._later is not None:
            self._replies.add(call)
            self._later.append((self._mark_late, call))
            return call
        end = self._append_marker(call.asked)
        self._replies.add(call)
        self._begin(self._marker_steps(call, end))
        return call

    def _append_marker(self, wanted: "_MarkerToAppend") -> Offset | None:
        self._flush_now()
        if not wanted.is_wanted():
            return None
        return self.partition.transactions.append_marker(
            wanted.marker, self._context.clock.now_ms()
        )

    def _mark_late(self, call: Call[M]) -> Slices[None]:
        try:
            end = self._append_marker(call.asked)
        except BrokerError as error:
            self._replies.refuse([(call, None)], error)
        else:
            yield from self._marker_steps(call, end)

    def _marker_steps(self, call: Call[M], end: Offset | None) -> Slices[None]:
        marker: TxnMarker = call.asked.marker
        if end is not None:
            kind = MarkerType.COMMIT if marker.commits else MarkerType.ABORT
            producer = marker.producer_id, marker.producer_epoch, True
            facts = RecordFacts(self._next_offset, False, *producer)
            replaying = self.machine.replaying_marker(Marker(kind, marker.coordinator_epoch), facts)
            yield from self._replaying(replaying)
            self._appended(Offset(self._next_offset + 1), end)
        self._reply([(call, marker)])

    @property
    def _is_closed(self) -> bool:
        return self._later is not None

    def tell(self, decide: Callable[[M, Asked, Event], Slices[None] | None], asked: Asked) -> None:
        """An event that nobody waits for."""
        if self.status is Status.ACTIVE:
            self._handle(Call(decide, asked))

    def _expire(self, key: TimerKey) -> None:
        if self._is_closed:
            # The heartbeat that would rearm this timer may be among the waiting calls.
            self._timers.arm(key, _RETRY_CLOSED_S)
            return
        is_paused = self._update_pause()
        if key == _PAUSE:
            return
        if is_paused and not self.machine.only_replies(key):
            self._timers.arm(key, _RETRY_TIMER_S)
            return
        self._handle(Call(_expired, key))

    def _update_pause(self) -> bool:
        """Whether heartbeats are refused now. Timers of sessions stand still then, so that no
        member loses its session because of it."""
        try:
            self._check_isr_fetches()
            self.partition.check_enough_replicas()
        except BrokerError:
            self._timers.pause()
            self._timers.arm(_PAUSE, _RETRY_TIMER_S)
        else:
            self._timers.resume()
        return self._timers.is_paused

    def _handle(self, call: Call[M]) -> None:
        if self._later is not None:
            self._later.append((self._steps, call))
        else:
            self._begin(self._steps(call))

    def _begin(self, steps: Slices[None]) -> None:
        """Most events have one slice. The other slices of a larger one follow, and the shard is
        closed until then: calls that arrive meanwhile wait in their order."""
        try:
            next(steps)
        except StopIteration:
            return
        except Exception as error:
            # A bug. The log is consistent; what this event has decided is dropped.
            self._fail(error)
            return
        self._later = deque()
        self._context.tasks.start(
            partial(self._go_through, self.machine, steps, self._later),
            name="coordinator event",
            on_failure=self._fail,
        )

    async def _go_through(self, machine: M, steps: Slices[None], later: "_Later[M]") -> None:
        """The rest of an event, then the calls that arrived meanwhile. It stops if the shard stops
        serving with this machine."""
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
                begin, call = later.popleft()
                steps = begin(call)
                events += 1
                if events % _EVENTS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            if self._serves_with(machine):
                self._fail(error)
        if self._serves_with(machine):
            self._later = None

    def _steps(self, call: Call[M]) -> Slices[None]:
        """One event, from its decision to its replies."""
        context = self._context
        event = Event(
            context.clock.now_ms(), call, context.topics(), self._appender.batch_bytes_max
        )
        is_large = False
        for _ in call.decide(self.machine, event) or ():
            is_large = True  # Writing and replaying it will take long, too.
            yield
        if event.records:
            appended = Offset(self._next_offset)
            try:
                if is_large or event.is_large:
                    yield from self._write_large(event)
                else:
                    self._write(event)
            except BrokerError as error:
                log_end = self.partition.log_as_it_is.end_offset
                if self._next_offset != appended and self._next_offset != log_end:
                    self._lose(error)  # A part of it is in the log and has not been replayed.
                else:
                    self._refuse(event, error)
                if self.status is not Status.ACTIVE:
                    return
        self._finish(event)

    def _refuse(self, event: Event, error: BrokerError) -> None:
        """Nothing has been replayed, so only the calls of this event fail."""
        log.warning("coordinator records refused", extra=self._fields(error))
        self._replies.refuse(event.replies, error)
        event.replies.clear()
        event.notices_when_committed.clear()
        for key in [key for key, at_ms in event.timers.items() if at_ms is None]:
            del event.timers[key]  # The timers that it would have cancelled stay armed.

    def _finish(self, event: Event) -> None:
        for key, deadline_ms in event.timers.items():
            if deadline_ms is None:
                self._timers.cancel(key)
            else:
                self._timers.arm(key, (deadline_ms - event.now_ms) / 1000)
        for notice in event.notices:
            self._context.on_notice(notice)
        if event.notices_when_committed:
            self._replies.notify_at(self._next_offset, event.notices_when_committed)
            self._replies.notify(self._committed_end)
        if event.replies:
            self._reply(event.replies)

    # -- appending -------------------------------------------------------------------------------

    def _write(self, event: Event) -> None:
        """Replay the records, and queue or append them. Raises a `BrokerError` if they are
        refused."""
        queued = self._appender.encode(event)
        producer = event.producer
        if producer is None:
            run_to_end(self._replay(event.records, None))
            self._queue.add(queued)
            self._flush_soon()
            return
        self._flush_now()
        # It is a batch of its own, because a batch with other records could not be aborted.
        (batch_of,) = queued
        end = self._appender.append(batch_of.records, producer)
        run_to_end(self._replay(event.records, producer))
        self._appended(self._next_offset, end)

    def _write_large(self, event: Event) -> Slices[None]:
        """As `_write`, in slices, and appended before it is replayed."""
        pieces = yield from self._appender.encoding(event)
        self._flush_now()
        records = iter(event.records)
        for piece in pieces:
            # Events that nobody waits for are not repeated, so they are appended even then.
            if event.replies:
                self.partition.check_enough_replicas()
            end = yield from self._appender.appending(piece.records, event.producer)
            of_piece = list(islice(records, len(piece.records)))
            piece.records.clear()  # Freeing all memory of a large event at its end would take long.
            yield from self._replaying(self._replay(of_piece, event.producer))
            self._appended(self._next_offset, end)

    def _replaying(self, replay: Slices[None]) -> Slices[None]:
        """Runs a replay; `until_readable` waits for its end."""
        for _ in replay:
            self._is_replaying = True
            yield
        self._is_replaying = False

    def _replay(
        self, records: list[CoordinatorRecord], producer: TransactionalProducer | None
    ) -> Slices[None]:
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

    def _flush(self, machine: M) -> None:
        """Append what is queued, in as few batches as possible."""
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
        """Records that were appended without the queue have been replayed."""
        assert next_offset == end, "another writer"
        self._next_offset = end
        self.partition.when_committed(end, partial(self._on_commit, self.machine, end))

    def _serves_with(self, machine: M) -> bool:
        """Whether the shard still serves with this machine. The queue is dropped together with the
        machine."""
        return self.status is Status.ACTIVE and machine is self.machine

    def _append_batch(self) -> Offset:
        records, pieces = self._queue.next_batch(self._appender.batch_bytes_max)
        end = self._appender.append(records)
        self._queue.drop(pieces)
        assert end == self._next_offset - len(self._queue), "another writer"
        return end

    def _on_commit(self, machine: M, end: Offset, error: BrokerError | None) -> None:
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

    def _settle(self, machine: M, end: Offset) -> None:
        """Make committed records visible, then send the replies that waited for them."""
        if not self._serves_with(machine):
            return
        if machine.committed(end):
            asyncio.get_running_loop().call_soon(self._settle, machine, end)
            return
        self._committed_end = max(self._committed_end, end)
        self._replies.committed(self._committed_end)

    def _lose(self, error: Exception) -> None:
        """The log does not have what was replayed: load it again, if this broker still leads."""
        if not isinstance(error, BrokerError):
            self._fail(error)
            return
        log.warning("coordinator append failed", extra=self._fields(error))
        self._stop_serving(error)
        self._reset()
        self._resume()

    def _reply(self, replies: list[tuple[Call[M], Any]]) -> None:
        """Send replies, at once if everything that was replayed is committed."""
        if self._committed_end >= self._next_offset:
            self._replies.deliver(replies)
        else:
            self._replies.deliver_at(self._next_offset, replies)


def _elected(machine: Machine, _: None, event: Event) -> Slices[None] | None:
    return machine.elected(event)


def _expired(machine: Machine, key: TimerKey, event: Event) -> Slices[None] | None:
    return machine.expired(key, event)


def _decides_nothing(_machine: Machine, _marker: _MarkerToAppend, _event: Event) -> None:
    """For markers, which the shard itself appends."""
