"""Verification of transactional writes with the transaction coordinator (KIP-890).

The functions translate what the coordinator says into what the clients of Produce and
TxnOffsetCommit understand (hazard T22).
"""

from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.errors import error_from
from suwi.model.errors import BrokerError, NotEnoughReplicas
from suwi.model.ids import TopicPartition
from suwi.records.batch import BatchHeader, read_header
from suwi.replica.partition import Partition
from suwi.replica.partition_transactions import NOT_VERIFIED, VerificationGuard
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.produce import ProduceRequest

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
        is_known = version >= _PRODUCE_ABORTABLE_FROM
        told = ErrorCode.transaction_abortable if is_known else ErrorCode.invalid_txn_state
        return error_from(told, "the batch is not part of an open transaction")
    if code is ErrorCode.producer_fenced:
        return error_from(ErrorCode.invalid_producer_epoch, message)
    if code is ErrorCode.concurrent_transactions and version >= PRODUCE_ADDS_FROM:
        return error_from(code, message)
    return NotEnoughReplicas(message) if code in _TRY_AGAIN else error_from(code, message)


def txn_offset_commit_refusal(code: ErrorCode, version: int) -> ErrorCode:
    """NOT_COORDINATOR is not used, because the client would take it for an error of the group
    coordinator."""
    if code in _NOT_IN_TRANSACTION:
        is_known = version >= _TXN_OFFSET_COMMIT_ABORTABLE_FROM
        return ErrorCode.transaction_abortable if is_known else ErrorCode.invalid_txn_state
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.concurrent_transactions and version >= TXN_OFFSET_COMMIT_ADDS_FROM:
        return code
    return ErrorCode.coordinator_load_in_progress if code in _TRY_AGAIN else code


Place: TypeAlias = tuple[int, int]
"""Topic and partition position in the request."""
FindPartition: TypeAlias = Callable[[str | None, UUID | None, int], Partition]


class ProduceVerification:
    """The transactional batches of one produce request (hazards T1-T3).

    `begin` takes a guard for each batch that opens a transaction in its partition; `finish` asks
    the transaction coordinator about all of them at once. `verified` is what the append needs. A
    request that is handled in pieces does so for each piece.
    Invariant: a guard is taken before the coordinator is asked, and the append compares it.
    """

    def __init__(self, version: int, verifier: TransactionVerifier) -> None:
        self.verified: dict[Place, VerificationGuard | BrokerError | None] = {}
        """By batch its guard, the error that refuses it, or None if its transaction is open
        already."""
        self._version = version
        self._verifier = verifier
        self._adds = version >= PRODUCE_ADDS_FROM
        self._producer: tuple[int, int] | None = None
        """Id and epoch, which are the same for all batches."""
        self._unverified: dict[Place, TopicPartition] = {}

    def begin(self, asked: ProduceRequest, find: FindPartition) -> bool:
        """Begin with a request or its next piece. Returns whether the coordinator must be asked.

        A malformed batch is found by the append; a partition that is not led here now is refused,
        even if it is by then.
        """
        self.verified, self._unverified = {}, {}
        for topic_number, (name, topic_id, partitions) in enumerate(asked.topics):
            for number, (index, records) in enumerate(partitions):
                try:
                    header = read_header(records or b"")
                except BrokerError:
                    continue
                if not header.is_transactional:
                    continue
                place = topic_number, number
                try:
                    partition = find(name, topic_id, index)
                except BrokerError as error:
                    self.verified[place] = error
                else:
                    self._begin_one(place, partition, header)
        return bool(self._unverified)

    def _begin_one(self, place: Place, partition: Partition, header: BatchHeader) -> None:
        producer = header.producer_id, header.producer_epoch
        self._producer = self._producer or producer
        if producer != self._producer:
            self.verified[place] = error_from(
                ErrorCode.invalid_producer_id_mapping, "a transaction has one producer"
            )
            return
        if not self._adds and not self._verifier.is_enabled:
            self.verified[place] = NOT_VERIFIED
            return
        try:
            guard = partition.transactions.begin_verification(
                *producer, header.base_sequence, is_implicit=self._adds
            )
        except BrokerError as error:  # Its log is not ready.
            self.verified[place] = error
            return
        self.verified[place] = guard
        if guard is not None:
            self._unverified[place] = partition.partition

    async def finish(self, asked: ProduceRequest) -> None:
        assert asked.transactional_id is not None
        assert self._producer is not None
        errors = await self._verifier.verify(
            asked.transactional_id,
            *self._producer,
            list(dict.fromkeys(self._unverified.values())),
            adds=self._adds,
        )
        for place, tp in self._unverified.items():
            if errors[tp] is not ErrorCode.none:
                self.verified[place] = produce_refusal(errors[tp], self._version)
