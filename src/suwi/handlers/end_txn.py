"""EndTxn v0-v5. v2: PRODUCER_FENCED. v5: an epoch for each transaction (KIP-890), and the producer
id and epoch to go on with.

Answers when the decision is committed; the markers follow.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from suwi.handlers.init_producer_id import producer_reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionRuntime,
)
from suwi.transaction.transaction_metadata import (
    TRANSACTION_VERSION_2,
    EndTxnRequest,
    Producer,
    ProducerResponse,
)
from suwi.transaction.transaction_requests import ask_for_producer, fenced_as

_PRODUCER_FENCED_FROM: Final = 2
_EPOCH_OF_ITS_OWN_FROM: Final = 5
# librdkafka does not retry others, and its transaction would be neither committed nor aborted.
_TOLD: Final = {
    ErrorCode.unknown_server_error: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
}


class EndTxn:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionRuntime) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def __call__(self, request: Request) -> Reply:
        response = await self._end(request)
        error = _TOLD.get(response.error, response.error)
        told = fenced_as(error, request.version, _PRODUCER_FENCED_FROM)
        return producer_reply(request, told, response.producer)

    async def _end(self, request: Request) -> ProducerResponse:
        asked = request.message
        if not asked.transactional_id:
            return ProducerResponse(ErrorCode.invalid_request)
        version = TRANSACTION_VERSION_2 if request.version >= _EPOCH_OF_ITS_OWN_FROM else 0
        return await ask_for_producer(
            self._transactions,
            self._producer_ids,
            TransactionCoordinatorShard.end_transaction,
            EndTxnRequest(
                asked.transactional_id,
                Producer(asked.producer_id, asked.producer_epoch),
                asked.committed,
                version,
            ),
        )
