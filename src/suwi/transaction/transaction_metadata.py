"""What is asked of a transactional id, whether it is allowed, and the transitions of its state.

Each transition is a function that returns the record of the next state.

Invariants: a transition starts only from the states that `_BEFORE` names; a client is never given
an epoch above `EPOCH_OF_CLIENTS_MAX`, so that it can always be fenced by one more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.model.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState

EPOCH_OF_CLIENTS_MAX: Final = 32_766
TRANSACTION_VERSION_2: Final = 2
"""Each transaction has an epoch of its own (KIP-890)."""

PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETED: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
AT_REST: Final = (TransactionState.EMPTY, *COMPLETED)
OPEN: Final = (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
"""PrepareEpochFence is not written here, but a log may contain it. It is fenced again."""

HELD_MS_MAX: Final = 500
"""How long a request may wait until the markers of the previous transaction are written."""
HELD_MS_MAX_OF_BROKERS: Final = 100
"""The same for requests of brokers. They ask about many transactions at once, and the reply for all
waits for the slowest."""


# -- requests to a transaction coordinator, and its responses --------------------------------------


class Producer(NamedTuple):
    id: ProducerId
    epoch: ProducerEpoch


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class InitProducerIdRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    """The producer id and epoch that the client has, if it continues after an error (KIP-360)."""
    new_producer_id: ProducerId | None = None
    """A new producer id, in case that one is needed."""


class AddPartitionsRequest(NamedTuple):
    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 0
    verify_only: bool = False
    held_ms_max: int = HELD_MS_MAX


class EndTxnRequest(NamedTuple):
    transactional_id: str
    producer: Producer
    is_commit: bool
    transaction_version: int = 0
    new_producer_id: ProducerId | None = None
    """A new producer id, in case that one is needed."""


class ProducerResponse(NamedTuple):
    """The response to InitProducerId and EndTxn."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER
    needs_producer_id: bool = False
    """Nothing was done: the request must be made again with a new producer id."""


NEEDS_PRODUCER_ID = ProducerResponse(ErrorCode.coordinator_load_in_progress, needs_producer_id=True)


@dataclass(frozen=True, slots=True, eq=False)
class MarkersToSend:
    """Of a transaction that has been decided. Compared by identity: an answer for one transaction
    never ends the next (hazard T10)."""

    transactional_id: str
    producer: Producer
    is_commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int


# -- transitions -----------------------------------------------------------------------------------

_BEFORE: Final[Mapping[TransactionState, tuple[TransactionState, ...]]] = {
    TransactionState.EMPTY: AT_REST,
    TransactionState.ONGOING: (*OPEN, *AT_REST),
    TransactionState.PREPARE_COMMIT: OPEN,
    TransactionState.PREPARE_ABORT: OPEN,
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT,),
    # Version 2: an abort without partitions has no markers to wait for.
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT, *AT_REST),
}


def _transition(
    metadata: TransactionLogValue, state: TransactionState, now_ms: int, **changes: Any
) -> TransactionLogValue:
    assert metadata.state in _BEFORE[state], f"{metadata.state.label} to {state.label}"
    return replace(
        metadata,
        state=state,
        last_update_ms=now_ms,
        previous_producer_id=metadata.producer_id,
        **changes,
    )


def created(producer_id: ProducerId, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=ProducerEpoch(0),
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
    )


def initialized(
    metadata: TransactionLogValue,
    producer_id: ProducerId,
    producer_epoch: int,
    timeout_ms: int,
    now_ms: int,
) -> TransactionLogValue:
    """A producer begins, or continues, with that id and epoch."""
    return _transition(
        metadata,
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        client_transaction_version=0,
    )


def with_partitions(
    metadata: TransactionLogValue, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> TransactionLogValue:
    begins = metadata.state not in OPEN
    return _transition(
        metadata,
        TransactionState.ONGOING,
        now_ms,
        partitions=metadata.partitions.union(partitions),
        start_ms=now_ms if begins else metadata.start_ms,
        client_transaction_version=version if begins else metadata.client_transaction_version,
    )


def prepared(
    metadata: TransactionLogValue,
    *,
    is_commit: bool,
    version: int,
    next_producer_id: ProducerId,
    now_ms: int,
) -> TransactionLogValue:
    """The client has decided. In version 2 the epoch ends together with the transaction."""
    bump = 1 if version >= TRANSACTION_VERSION_2 else 0
    return _transition(
        metadata,
        TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=metadata.producer_epoch + bump,
        next_producer_id=next_producer_id,
        client_transaction_version=version,
    )


def fenced(metadata: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """The transaction is aborted without its client, whose epoch ends with it (KAFKA-6119). The
    epoch is raised by one, also in version 2 (KAFKA-19367)."""
    return _transition(
        metadata, TransactionState.PREPARE_ABORT, now_ms, producer_epoch=metadata.producer_epoch + 1
    )


def completed(metadata: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """All markers are written. If the epochs are used up, the next producer id takes effect."""
    is_commit = metadata.state is TransactionState.PREPARE_COMMIT
    return _ended(
        metadata,
        TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        now_ms,
    )


def aborted_without_partitions(
    metadata: TransactionLogValue, next_producer_id: ProducerId, now_ms: int
) -> TransactionLogValue:
    """Version 2: the client aborts a transaction that was not begun here. Its epoch is raised
    nevertheless."""
    bumped = replace(
        metadata,
        producer_epoch=ProducerEpoch(metadata.producer_epoch + 1),
        next_producer_id=next_producer_id,
        start_ms=now_ms,
        client_transaction_version=TRANSACTION_VERSION_2,
    )
    return _ended(bumped, TransactionState.COMPLETE_ABORT, now_ms)


def _ended(
    metadata: TransactionLogValue, state: TransactionState, now_ms: int
) -> TransactionLogValue:
    producer_id, producer_epoch = metadata.producer_id, metadata.producer_epoch
    if metadata.next_producer_id != NO_PRODUCER_ID:
        producer_id, producer_epoch = metadata.next_producer_id, ProducerEpoch(0)
    return _transition(
        metadata,
        state,
        now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


# -- whether a producer may do in a transaction what it asks for -----------------------------------
# Requests for a transaction whose markers are being written are not checked here: they wait.


def check_producer(producer: Producer, metadata: TransactionLogValue) -> ErrorCode:
    if producer.id != metadata.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    # No client has the epoch that fences the last producer.
    if producer.epoch != metadata.producer_epoch or producer.epoch > EPOCH_OF_CLIENTS_MAX:
        return ErrorCode.producer_fenced
    return ErrorCode.none


def check_end(request: EndTxnRequest, metadata: TransactionLogValue) -> ErrorCode | None:
    """An error; `none` if it was decided before in the same way; None if it must be decided now."""
    is_version_2 = request.transaction_version >= TRANSACTION_VERSION_2
    state = metadata.state
    was_committed = state is TransactionState.COMPLETE_COMMIT
    if is_version_2 and state in COMPLETED and _is_retry(request.producer, metadata):
        if metadata.producer_epoch > EPOCH_OF_CLIENTS_MAX:
            return ErrorCode.producer_fenced  # There is no epoch left to continue with.
        is_same = was_committed is request.is_commit
        return ErrorCode.none if is_same else ErrorCode.invalid_txn_state
    error = check_producer(request.producer, metadata)
    if error is not ErrorCode.none:
        return error
    if state in OPEN:
        return None
    if is_version_2:
        # Nothing was begun in this epoch; an abort ends the epoch nevertheless (hazard T5).
        return ErrorCode.invalid_txn_state if request.is_commit else None
    if state in COMPLETED and was_committed is request.is_commit:
        return ErrorCode.none
    return ErrorCode.invalid_txn_state


def _is_retry(producer: Producer, metadata: TransactionLogValue) -> bool:
    """Whether an EndTxn of version 2 has ended the transaction of this epoch before: then the next
    epoch, or the next producer id, has replaced it."""
    if metadata.client_transaction_version < TRANSACTION_VERSION_2:
        return False
    if producer.id == metadata.producer_id:
        return producer.epoch + 1 == metadata.producer_epoch
    return (
        producer.id == metadata.previous_producer_id
        and producer.epoch == EPOCH_OF_CLIENTS_MAX
        and metadata.producer_epoch == 0
    )
