"""The machine of transactions in any state, and short names for what is asked and answered."""

from kio.schema.errors import ErrorCode

from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from tests.transaction.driver import (
    TIMEOUT_MS,
    Driver,
    producer,
    tp,
)

S = TransactionState
NONE, FENCED = ErrorCode.none, ErrorCode.producer_fenced
INVALID, MAPPING = ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping
CONCURRENT, ABORTABLE = ErrorCode.concurrent_transactions, ErrorCode.transaction_abortable
WAITS = None
CURRENT, PREVIOUS, NEXT, OTHER = producer(7, 5), producer(7, 4), producer(7, 6), producer(8, 5)


def in_state(state: TransactionState, *, version: int = 0, epoch: int = 5) -> Driver:
    """Elected with a producer 7 of that epoch."""
    driver = Driver()
    is_begun = state is not S.EMPTY
    has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    driver.put(
        TransactionLogValue(
            producer_id=CURRENT.id,
            producer_epoch=producer(7, epoch).epoch,
            timeout_ms=TIMEOUT_MS,
            state=state,
            partitions=frozenset({tp(0)}) if has_partitions else frozenset(),
            last_update_ms=driver.now_ms,
            start_ms=driver.now_ms if is_begun else -1,
            previous_producer_id=CURRENT.id,
            client_transaction_version=version if is_begun else 0,
        )
    )
    driver.resign_and_return()
    return driver
