"""Whether a producer may do in a transaction what it asks for.

A transaction whose markers are being written is not judged here: its requests wait.
"""

from kio.schema.errors import ErrorCode

from suwi.transaction.messages import EndTxnRequest, Producer
from suwi.transaction.transaction_metadata import (
    COMPLETED,
    EPOCH_OF_CLIENTS_MAX,
    OPEN,
    TRANSACTION_VERSION_2,
)
from suwi.transaction.transaction_records import TransactionLogValue, TransactionState


def check_producer(producer: Producer, metadata: TransactionLogValue) -> ErrorCode:
    if producer.id != metadata.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    # The epoch that fences the last producer is nobody's.
    if producer.epoch != metadata.producer_epoch or producer.epoch > EPOCH_OF_CLIENTS_MAX:
        return ErrorCode.producer_fenced
    return ErrorCode.none


def check_end(request: EndTxnRequest, metadata: TransactionLogValue) -> ErrorCode | None:
    """An error; `none` if it was decided before in the same way; None if it is to be decided."""
    is_version_2 = request.transaction_version >= TRANSACTION_VERSION_2
    state = metadata.state
    was_committed = state is TransactionState.COMPLETE_COMMIT
    if is_version_2 and state in COMPLETED and _is_retry(request.producer, metadata):
        if metadata.producer_epoch > EPOCH_OF_CLIENTS_MAX:
            return ErrorCode.producer_fenced  # There is no epoch to go on with.
        is_same = was_committed is request.is_commit
        return ErrorCode.none if is_same else ErrorCode.invalid_txn_state
    error = check_producer(request.producer, metadata)
    if error is not ErrorCode.none:
        return error
    if state in OPEN:
        return None
    if is_version_2:
        # Nothing was begun in this epoch: an abort ends it all the same (hazard T5).
        return ErrorCode.invalid_txn_state if request.is_commit else None
    if state in COMPLETED and was_committed is request.is_commit:
        return ErrorCode.none
    return ErrorCode.invalid_txn_state


def _is_retry(producer: Producer, metadata: TransactionLogValue) -> bool:
    """Whether the epoch, or the producer id, of an EndTxn of version 2 was replaced by the next,
    which is how its transaction ended."""
    if metadata.client_transaction_version < TRANSACTION_VERSION_2:
        return False
    if producer.id == metadata.producer_id:
        return producer.epoch + 1 == metadata.producer_epoch
    return (
        producer.id == metadata.previous_producer_id
        and producer.epoch == EPOCH_OF_CLIENTS_MAX
        and metadata.producer_epoch == 0
    )
