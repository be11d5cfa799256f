"""The transactional ids of one partition of `__transaction_state`, as a pure machine.

`coordinator/shard.py` drives it: each method adds its decisions to an `Event`; persistent state
changes only in `replay`. When Prepare is committed, the markers are sent (the notice
`MarkersToSend`); `markers_written` completes the transaction. Requests that come while markers are
written are held until then, for a short time.
Invariant (hazard H0): `transactions` is what a replay of the log gives.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import AnyCall, Event, TimerKey
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env.slices import Slices
from suwi.model.ids import NO_PRODUCER_ID, ProducerEpoch
from suwi.records.record import Marker
from suwi.transaction.transaction_metadata import (
    AT_REST,
    EPOCH_OF_CLIENTS_MAX,
    HELD_MS_MAX,
    NEEDS_PRODUCER_ID,
    OPEN,
    PREPARED,
    TRANSACTION_VERSION_2,
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MarkersToSend,
    Producer,
    ProducerResponse,
    aborted_without_partitions,
    check_end,
    check_producer,
    completed,
    created,
    fenced,
    initialized,
    prepared,
    with_partitions,
)
from suwi.transaction.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)

_PARTITIONS_MAX: Final = 20_000
"""The most partitions of a transaction: they are one record, and a set that is copied at once."""
_ABORTED_PER_EVENT: Final = 100
_CHECKED_PER_SLICE: Final = 500
_ABORT_TIMED_OUT: Final = ("abort timed out",)
_REMOVE_EXPIRED: Final = ("remove expired",)
_COMPLETE: Final = "complete"
_CONCURRENT: Final = ProducerResponse(ErrorCode.concurrent_transactions)


class TransactionConfig(NamedTuple):
    id_expiration_ms: int
    abort_timed_out_interval_ms: int
    remove_expired_interval_ms: int


HELD: Final = "held"
"""The first item of the keys of its timers; the transactional id is the second."""


class _Held(NamedTuple):
    call: AnyCall
    refusal: Any


class HeldRequests:
    """Requests that came while the markers of a transaction were being written.

    They are decided again when the transaction has ended, which is sooner than the client would
    ask again (KAFKA-18654), or refused after a short time.
    Invariant: a held request has an armed timer.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, list[_Held]] = {}
        self._until_ms: dict[str, int] = {}
        """When all requests that are held for an id are refused: at the earliest of their
        deadlines."""

    def __len__(self) -> int:
        return len(self._by_id)

    def hold(
        self, transactional_id: str, refusal: Any, event: Event, ms_max: int = HELD_MS_MAX
    ) -> None:
        """Hold the call of the event. `refusal`: its response if the time is over."""
        assert event.call is not None
        until_ms = event.now_ms + ms_max
        self._by_id.setdefault(transactional_id, []).append(_Held(event.call, refusal))
        if until_ms < self._until_ms.get(transactional_id, until_ms + 1):
            self._until_ms[transactional_id] = until_ms
            event.arm((HELD, transactional_id), until_ms)

    def ended(self, transactional_id: str, event: Event) -> None:
        """The transaction ends with this event. The next events release the requests."""
        if transactional_id in self._by_id:
            event.arm((HELD, transactional_id), event.now_ms)

    def refuse(self, transactional_id: str, event: Event) -> None:
        self._until_ms.pop(transactional_id, None)
        for held in self._by_id.pop(transactional_id, []):
            event.reply_to(held.call, held.refusal)

    def release(self, transactional_id: str, event: Event) -> AnyCall | None:
        """Returns the call to be decided again. One in each event, so that the next call sees the
        changes of this one."""
        self._until_ms.pop(transactional_id, None)
        waiting = self._by_id.pop(transactional_id, [])
        if len(waiting) > 1:
            self._by_id[transactional_id] = waiting[1:]
            event.arm((HELD, transactional_id), event.now_ms)
        return waiting[0].call if waiting else None

    def clear(self) -> None:
        self._by_id.clear()
        self._until_ms.clear()


class TransactionCoordinatorShard:
    def __init__(self, config: TransactionConfig) -> None:
        self.transactions: dict[str, TransactionLogValue] = {}
        self._config = config
        self._open_since_ms: dict[str, int] = {}
        """By open transaction the earliest time at which it is known to be open."""
        self._prepared: dict[str, None] = {}
        """Transactions that were decided, and whose markers are not all written."""
        self._last_epochs: dict[str, ProducerEpoch] = {}
        """The epoch that InitProducerId or EndTxn has replaced for the same client: if it comes
        again, the reply was lost. As in Kafka, not persisted."""
        self._sending: dict[str, MarkersToSend] = {}
        self._held = HeldRequests()
        self._expiry_left: list[str] = []
        """The ids that the current round must still check, the next one last."""

    # -- InitProducerId --------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest, event: Event) -> None:
        transactional_id, expected = request.transactional_id, request.expected
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            if request.new_producer_id is None:
                event.reply(NEEDS_PRODUCER_ID)
                return
            self._last_epochs.pop(transactional_id, None)
            new = created(request.new_producer_id, request.timeout_ms, event.now_ms)
            self._write_and_reply(transactional_id, new, event)
            return
        if metadata.state in PREPARED:
            self._held.hold(transactional_id, _CONCURRENT, event)
        elif expected is not None and not self._is_known(expected, metadata, transactional_id):
            event.reply(ProducerResponse(ErrorCode.producer_fenced))
        elif metadata.state in OPEN:
            self._prepare(transactional_id, fenced(metadata, event.now_ms), event)
            self._remember(transactional_id, expected)
            self._held.hold(transactional_id, _CONCURRENT, event)
        else:
            self._initialize(request, metadata, event)

    def _is_known(
        self, expected: Producer, metadata: TransactionLogValue, transactional_id: str
    ) -> bool:
        """Whether the client is the current producer, or one whose last reply was lost."""
        if expected == (metadata.producer_id, metadata.producer_epoch):
            return True
        if expected.epoch != self._last_epochs.get(transactional_id):
            return False
        is_rotated = expected.id == metadata.previous_producer_id
        return expected.id == metadata.producer_id or (
            is_rotated and expected.epoch >= EPOCH_OF_CLIENTS_MAX
        )

    def _initialize(
        self, request: InitProducerIdRequest, metadata: TransactionLogValue, event: Event
    ) -> None:
        """Give the producer a new epoch, or a new id if no epoch is left (hazard T7). If its last
        reply was lost, it gets the same again."""
        transactional_id, expected = request.transactional_id, request.expected
        producer_id, epoch = metadata.producer_id, metadata.producer_epoch
        was_lost = expected is not None and expected != (producer_id, epoch)
        if not was_lost or epoch > EPOCH_OF_CLIENTS_MAX:
            if epoch < EPOCH_OF_CLIENTS_MAX:
                epoch = ProducerEpoch(epoch + 1)
            elif request.new_producer_id is None:
                event.reply(NEEDS_PRODUCER_ID)
                return
            else:
                producer_id, epoch = request.new_producer_id, ProducerEpoch(0)
            self._remember(transactional_id, expected)
        new = initialized(metadata, producer_id, epoch, request.timeout_ms, event.now_ms)
        self._write_and_reply(transactional_id, new, event)

    def _remember(self, transactional_id: str, replaced: Producer | None) -> None:
        if replaced is None:
            self._last_epochs.pop(transactional_id, None)
        else:
            self._last_epochs[transactional_id] = replaced.epoch

    @property
    def open_since_ms(self) -> Collection[int]:
        """Since when each open transaction has been open."""
        return self._open_since_ms.values()

    def not_ended(self) -> list[str]:
        return [*self._open_since_ms, *self._prepared]

    # -- partitions ------------------------------------------------------------------------------

    def add_partitions(self, request: AddPartitionsRequest, event: Event) -> None:
        """The reply: an error for each partition."""
        transactional_id = request.transactional_id
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            event.reply(_to_all(request, ErrorCode.invalid_producer_id_mapping))
            return
        if request.verify_only:
            event.reply(self._verify(request, metadata))
            return
        # This comes before the checks of id and epoch: the client may already have those that apply
        # after the markers (KAFKA-18660).
        if metadata.state in PREPARED:
            refusal = _to_all(request, ErrorCode.concurrent_transactions)
            self._held.hold(transactional_id, refusal, event, request.held_ms_max)
            return
        error = check_producer(request.producer, metadata)
        if error is ErrorCode.none and not (
            metadata.state in OPEN and metadata.partitions.issuperset(request.partitions)
        ):
            new = with_partitions(
                metadata, request.partitions, request.transaction_version, event.now_ms
            )
            if len(new.partitions) > _PARTITIONS_MAX:
                error = ErrorCode.invalid_request
            else:
                event.append(TransactionLogKey(transactional_id), new)
                # The client has received its last reply.
                self._last_epochs.pop(transactional_id, None)
        event.reply(_to_all(request, error))

    def _verify(
        self, request: AddPartitionsRequest, metadata: TransactionLogValue
    ) -> dict[Any, ErrorCode]:
        error = check_producer(request.producer, metadata)
        if error is ErrorCode.none and metadata.state in PREPARED:
            error = ErrorCode.concurrent_transactions
        if error is not ErrorCode.none:
            return _to_all(request, error)
        return {
            each: ErrorCode.none if each in metadata.partitions else ErrorCode.transaction_abortable
            for each in request.partitions
        }

    # -- EndTxn ----------------------------------------------------------------------------------

    def end_transaction(self, request: EndTxnRequest, event: Event) -> None:
        metadata = self.transactions.get(request.transactional_id)
        if metadata is None:
            error = ErrorCode.invalid_producer_id_mapping
            event.reply(ProducerResponse(error))
            return
        # Before the checks of id and epoch, as in `add_partitions`.
        if metadata.state in PREPARED:
            self._held.hold(request.transactional_id, _CONCURRENT, event)
            return
        verdict = check_end(request, metadata)
        if verdict is None:
            self._end(request, metadata, event)
        elif verdict is ErrorCode.none:
            # It was decided before, and the reply was lost. It is sent again.
            producer = Producer(metadata.producer_id, metadata.producer_epoch)
            event.reply(ProducerResponse(ErrorCode.none, producer))
        else:
            event.reply(ProducerResponse(verdict))

    def _end(self, request: EndTxnRequest, metadata: TransactionLogValue, event: Event) -> None:
        transactional_id, version = request.transactional_id, request.transaction_version
        next_producer_id = NO_PRODUCER_ID
        if version >= TRANSACTION_VERSION_2:
            if metadata.producer_epoch >= EPOCH_OF_CLIENTS_MAX:
                if request.new_producer_id is None:
                    event.reply(NEEDS_PRODUCER_ID)
                    return
                next_producer_id = request.new_producer_id
            self._remember(transactional_id, request.producer)
        if metadata.state not in OPEN:
            new = aborted_without_partitions(metadata, next_producer_id, event.now_ms)
            self._write_and_reply(transactional_id, new, event)
            return
        new = prepared(
            metadata,
            is_commit=request.is_commit,
            version=version,
            next_producer_id=next_producer_id,
            now_ms=event.now_ms,
        )
        self._prepare(transactional_id, new, event)
        after = completed(new, event.now_ms)
        producer = Producer(after.producer_id, after.producer_epoch)
        event.reply(ProducerResponse(ErrorCode.none, producer))

    # -- markers ---------------------------------------------------------------------------------

    def _prepare(self, transactional_id: str, new: TransactionLogValue, event: Event) -> None:
        event.append(TransactionLogKey(transactional_id), new)
        self._send_markers(transactional_id, new, event)

    def _send_markers(
        self, transactional_id: str, metadata: TransactionLogValue, event: Event
    ) -> None:
        markers = MarkersToSend(
            transactional_id,
            Producer(metadata.producer_id, metadata.producer_epoch),
            metadata.state is TransactionState.PREPARE_COMMIT,
            metadata.partitions,
            metadata.client_transaction_version,
        )
        self._sending[transactional_id] = markers
        event.notices_when_committed.append(markers)

    def is_sending(self, markers: MarkersToSend) -> bool:
        """Whether the markers are still to be written, by this coordinator."""
        return self._sending.get(markers.transactional_id) is markers

    def markers_written(self, markers: MarkersToSend, event: Event) -> None:
        if self.is_sending(markers):
            # By a timer, because it is retried if there are too few in-sync replicas.
            event.arm((_COMPLETE, markers.transactional_id), event.now_ms)

    def _complete(self, transactional_id: str, event: Event) -> None:
        if self._sending.pop(transactional_id, None) is None:
            return
        metadata = self.transactions[transactional_id]
        event.append(TransactionLogKey(transactional_id), completed(metadata, event.now_ms))
        self._held.ended(transactional_id, event)

    # -- time ------------------------------------------------------------------------------------

    def _abort_timed_out(self, event: Event) -> Slices[None]:
        event.is_atomic = False
        aborted = 0
        next_ms = event.now_ms + self._config.abort_timed_out_interval_ms
        for number, (transactional_id, since_ms) in enumerate(list(self._open_since_ms.items()), 1):
            if number % _CHECKED_PER_SLICE == 0:
                yield
            # The clock may have been set back (hazard T20), so the earliest time seen counts.
            since_ms = self._open_since_ms[transactional_id] = min(since_ms, event.now_ms)
            metadata = self.transactions[transactional_id]
            if event.now_ms - since_ms < metadata.timeout_ms:
                continue
            if aborted == _ABORTED_PER_EVENT:
                next_ms = event.now_ms
                break
            ended = fenced(metadata, event.now_ms)
            key = TransactionLogKey(transactional_id)
            has_room = yield from event.finding_room_for(key, ended)
            if not has_room:
                # The topic's max.message.bytes was lowered since. This transaction stays open until
                # it is raised again; the others do not wait for it.
                continue
            aborted += 1
            self._last_epochs.pop(transactional_id, None)
            self._prepare(transactional_id, ended, event)
        event.arm(_ABORT_TIMED_OUT, next_ms)

    def _remove_expired(self, event: Event) -> None:
        event.is_atomic = False
        if not self._expiry_left:
            self._expiry_left = list(self.transactions)
        for _ in range(min(_CHECKED_PER_SLICE, len(self._expiry_left))):
            transactional_id = self._expiry_left.pop()
            metadata = self.transactions.get(transactional_id)
            if metadata is None or metadata.state not in AT_REST:
                continue
            if event.now_ms - metadata.last_update_ms >= self._config.id_expiration_ms:
                event.append(TransactionLogKey(transactional_id), None)
        pause_ms = 0 if self._expiry_left else self._config.remove_expired_interval_ms
        event.arm(_REMOVE_EXPIRED, event.now_ms + pause_ms)

    # -- the runtime's side ----------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, _facts: RecordFacts) -> None:
        transactional_id, value = record.key.transactional_id, record.value
        if value is None or value.state is TransactionState.DEAD:
            for known in (
                self.transactions,
                self._open_since_ms,
                self._last_epochs,
                self._prepared,
            ):
                known.pop(transactional_id, None)
            return
        before = self.transactions.get(transactional_id)
        self.transactions[transactional_id] = value
        if value.state in PREPARED:
            self._prepared[transactional_id] = None
        else:
            self._prepared.pop(transactional_id, None)
        if value.state not in OPEN:
            self._open_since_ms.pop(transactional_id, None)
        elif before is None or before.state not in OPEN or before.start_ms != value.start_ms:
            self._open_since_ms[transactional_id] = value.start_ms

    def replaying_marker(self, _marker: Marker, _facts: RecordFacts) -> Slices[None]:
        yield from ()  # This topic has no transactional records.

    def committed(self, _end_offset: int) -> bool:
        return False  # Nothing but replies depends on it.

    def elected(self, event: Event) -> None:
        for transactional_id in self._prepared:
            metadata = self.transactions[transactional_id]
            self._send_markers(transactional_id, metadata, event)
        event.arm(_ABORT_TIMED_OUT, event.now_ms + self._config.abort_timed_out_interval_ms)
        event.arm(_REMOVE_EXPIRED, event.now_ms + self._config.remove_expired_interval_ms)

    def resigned(self) -> None:
        self._last_epochs.clear()
        self._sending.clear()
        self._held.clear()
        self._expiry_left.clear()

    def only_replies(self, key: TimerKey) -> bool:
        return isinstance(key, tuple) and key[0] == HELD and key[1] in self._prepared

    def expired(self, key: TimerKey, event: Event) -> Slices[None] | None:
        if key == _ABORT_TIMED_OUT:
            return self._abort_timed_out(event)
        if key == _REMOVE_EXPIRED:
            self._remove_expired(event)
            return None
        assert isinstance(key, tuple)
        kind, transactional_id = key
        if kind == _COMPLETE:
            self._complete(transactional_id, event)
        elif transactional_id in self._prepared:
            self._held.refuse(transactional_id, event)
        else:
            event.call = self._held.release(transactional_id, event)
            if event.call is not None:
                return event.call.decide(self, event)
        return None

    def _write_and_reply(
        self, transactional_id: str, new: TransactionLogValue, event: Event
    ) -> None:
        event.append(TransactionLogKey(transactional_id), new)
        producer = Producer(new.producer_id, new.producer_epoch)
        event.reply(ProducerResponse(ErrorCode.none, producer))


def _to_all(request: AddPartitionsRequest, error: ErrorCode) -> dict[Any, ErrorCode]:
    return dict.fromkeys(request.partitions, error)


TransactionRuntime: TypeAlias = CoordinatorRuntime[TransactionCoordinatorShard]
