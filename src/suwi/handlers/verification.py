"""Verification of transactional writes with the transaction coordinator (KIP-890).

The functions translate what the coordinator says into what the clients of Produce and
TxnOffsetCommit understand (hazard T22).
"""

from typing import Final

from kio.schema.errors import ErrorCode

from suwi.client.errors import error_from
from suwi.model.errors import BrokerError

PRODUCE_ADDS_FROM: Final = 12
"""The version of Produce with which the first write adds the partition to the transaction."""
TXN_OFFSET_COMMIT_ADDS_FROM: Final = 5
_PRODUCE_ABORTABLE_FROM: Final = 11
_TXN_OFFSET_COMMIT_ABORTABLE_FROM: Final = 4

# The coordinator could not be asked, or not yet: the client has to send the write again.
_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.network_exception,
        ErrorCode.not_coordinator,
        ErrorCode.operation_not_attempted,  # Another partition of the request was refused.
        ErrorCode.request_timed_out,
    }
)
_NOT_IN_TRANSACTION: Final = frozenset(
    {ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable}
)


def produce_refusal(code: ErrorCode, version: int) -> BrokerError:
    """The error for a producer. Older producers do not retry after errors of a coordinator. They do
    after NOT_ENOUGH_REPLICAS, without looking for another leader."""
    message = f"the transaction could not be verified: {code.name}"
    if code in _NOT_IN_TRANSACTION:
        message = "the batch is not part of an open transaction"
    versions = version >= _PRODUCE_ABORTABLE_FROM, version >= PRODUCE_ADDS_FROM
    return error_from(_told(code, *versions, ErrorCode.not_enough_replicas), message)


def txn_offset_commit_refusal(code: ErrorCode, version: int) -> ErrorCode:
    """NOT_COORDINATOR is not used, because the client would take it for an error of the group
    coordinator."""
    versions = version >= _TXN_OFFSET_COMMIT_ABORTABLE_FROM, version >= TXN_OFFSET_COMMIT_ADDS_FROM
    return _told(code, *versions, ErrorCode.coordinator_load_in_progress)


def _told(code: ErrorCode, knows_abortable: bool, adds: bool, try_again: ErrorCode) -> ErrorCode:
    if code in _NOT_IN_TRANSACTION:
        return ErrorCode.transaction_abortable if knows_abortable else ErrorCode.invalid_txn_state
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code in _TRY_AGAIN and not (adds and code is ErrorCode.concurrent_transactions):
        return try_again
    return code
