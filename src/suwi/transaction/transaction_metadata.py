"""The transitions of a transactional id: each function gives the record of the next state.

Invariants: a transition starts only from the states that `_BEFORE` names; a client is never given
an epoch above `EPOCH_OF_CLIENTS_MAX`, so that it can always be fenced by one more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from suwi.model.ids import (
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
OPEN: Final = (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
"""PrepareEpochFence is not written here, but may come from elsewhere: it is fenced again."""
AT_REST: Final = (TransactionState.EMPTY, *COMPLETED)

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
    """A producer begins, or goes on, with that id and epoch."""
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
    """Decided by the client. Version 2 ends the epoch together with the transaction."""
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
    """Aborted without its client, whose epoch ends with it (KAFKA-6119). One bump, also in version
    2 (KAFKA-19367)."""
    return _transition(
        metadata,
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=metadata.producer_epoch + 1,
    )


def completed(metadata: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """All markers are written. If the epochs are used up, the next producer id is in force."""
    is_commit = metadata.state is TransactionState.PREPARE_COMMIT
    return _ended(
        metadata,
        TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        now_ms,
    )


def aborted_without_partitions(
    metadata: TransactionLogValue, next_producer_id: ProducerId, now_ms: int
) -> TransactionLogValue:
    """Version 2: the client aborts what it has not begun here. Its epoch is bumped all the same."""
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
