"""InitProducerId v0-v5. v3: the producer that the client is. v4: PRODUCER_FENCED.

Without a transactional id, a new producer id; else the epochs of all producers before are fenced,
and their open transaction is aborted.
"""

from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.metadata.store import Unavailable
from suwi.model.errors import error_of
from suwi.model.ids import ProducerEpoch
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionRuntime,
)
from suwi.transaction.transaction_metadata import (
    NO_PRODUCER,
    InitProducerIdRequest,
    Producer,
    ProducerResponse,
)
from suwi.transaction.transaction_requests import ask_for_producer, fenced_as

_EXPECTED_FROM: Final = 3
_PRODUCER_FENCED_FROM: Final = 4
_MILLISECOND: Final = timedelta(milliseconds=1)


class InitProducerId:
    def __init__(
        self, producer_ids: ProducerIds, transactions: TransactionRuntime, timeout_ms_max: int
    ) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions
        self._timeout_ms_max = timeout_ms_max

    async def __call__(self, request: Request) -> Reply:
        if request.message.transactional_id is None:
            response = await self._idempotent()
        else:
            response = await self._transactional(request)
        error = fenced_as(response.error, request.version, _PRODUCER_FENCED_FROM)
        return producer_reply(request, error, response.producer)

    async def _idempotent(self) -> ProducerResponse:
        try:
            producer_id = await self._producer_ids.next()
        except Unavailable:
            # As Kafka does while it has no ids left: clients retry the request.
            return ProducerResponse(ErrorCode.coordinator_load_in_progress)
        except Exception as error:
            return ProducerResponse(error_of(error)[0])
        return ProducerResponse(ErrorCode.none, Producer(producer_id, ProducerEpoch(0)))

    async def _transactional(self, request: Request) -> ProducerResponse:
        asked = request.message
        expected = NO_PRODUCER
        if request.version >= _EXPECTED_FROM:
            expected = Producer(asked.producer_id, asked.producer_epoch)
        is_half = (expected.id == NO_PRODUCER.id) != (expected.epoch == NO_PRODUCER.epoch)
        if asked.transactional_id == "" or is_half:
            return ProducerResponse(ErrorCode.invalid_request)
        timeout_ms = asked.transaction_timeout // _MILLISECOND
        if not 0 < timeout_ms <= self._timeout_ms_max:
            return ProducerResponse(ErrorCode.invalid_transaction_timeout)
        return await ask_for_producer(
            self._transactions,
            self._producer_ids,
            TransactionCoordinatorShard.init_producer_id,
            InitProducerIdRequest(
                asked.transactional_id, timeout_ms, None if expected == NO_PRODUCER else expected
            ),
        )


def producer_reply(request: Request, error: ErrorCode, producer: Producer) -> Reply:
    """Of EndTxn, too."""
    fields = {"error_code": error, "producer_id": producer.id, "producer_epoch": producer.epoch}
    return reply(request, {**fields})
