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


async def end_txn(
    producer_ids: ProducerIds, transactions: TransactionRuntime, request: Request
) -> Reply:
    asked, response = request.message, ProducerResponse(ErrorCode.invalid_request)
    if asked.transactional_id:
        version = TRANSACTION_VERSION_2 if request.version >= _EPOCH_OF_ITS_OWN_FROM else 0
        producer = Producer(asked.producer_id, asked.producer_epoch)
        response = await ask_for_producer(
            transactions,
            producer_ids,
            TransactionCoordinatorShard.end_transaction,
            EndTxnRequest(asked.transactional_id, producer, asked.committed, version),
        )
    error = _TOLD.get(response.error, response.error)
    told = fenced_as(error, request.version, _PRODUCER_FENCED_FROM)
    return producer_reply(request, told, response.producer)
