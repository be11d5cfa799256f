"""What the handlers of transactional requests have in common."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.requests import ask, coordinator_error, submit
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.metadata.store import Unavailable
from suwi.model.ids import TopicPartition
from suwi.transaction.coordinator_shard import TransactionCoordinatorShard
from suwi.transaction.messages import (
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProducerResponse,
)
from suwi.transaction.producer_ids import ProducerIds


def fenced_as(error: ErrorCode, version: int, producer_fenced_from: int) -> ErrorCode:
    """Older clients know INVALID_PRODUCER_EPOCH only (KAFKA-9911)."""
    if error is ErrorCode.producer_fenced and version < producer_fenced_from:
        return ErrorCode.invalid_producer_epoch
    return error


class PartitionsAdded:
    """A request that is on its way to its shard; `errors` awaits what comes of it."""

    def __init__(self, runtime: CoordinatorRuntime, request: AddPartitionsRequest) -> None:
        self._partitions = request.partitions
        self._response: asyncio.Future[dict[TopicPartition, ErrorCode]] | None = None
        self._error = ErrorCode.invalid_request
        if request.transactional_id:
            try:
                self._response = submit(
                    runtime,
                    request.transactional_id,
                    lambda shard, token, now_ms, decision: shard.add_partitions(
                        request, token, now_ms, decision
                    ),
                    writes=not request.verify_only,
                )
            except Exception as error:
                self._error = coordinator_error(error)

    async def errors(self) -> dict[TopicPartition, ErrorCode]:
        """That of each partition."""
        error = self._error
        if self._response is not None:
            try:
                return await self._response
            except Exception as failure:
                error = coordinator_error(failure)
        return dict.fromkeys(self._partitions, error)


async def add_partitions(
    runtime: CoordinatorRuntime, request: AddPartitionsRequest
) -> dict[TopicPartition, ErrorCode]:
    """The error of each partition."""
    return await PartitionsAdded(runtime, request).errors()


async def ask_for_producer(
    runtime: CoordinatorRuntime,
    producer_ids: ProducerIds,
    request: InitProducerIdRequest | EndTxnRequest,
) -> ProducerResponse:
    """Let the shard decide, with a new producer id if it needs one."""

    def decide(
        shard: TransactionCoordinatorShard, token: Token, now_ms: int, decision: Decision
    ) -> None:
        if isinstance(request, EndTxnRequest):
            shard.end_transaction(request, token, now_ms, decision)
        else:
            shard.init_producer_id(request, token, now_ms, decision)

    try:
        while True:
            response: ProducerResponse = await ask(runtime, request.transactional_id, decide)
            if not response.needs_producer_id:
                return response
            request = request._replace(new_producer_id=await producer_ids.next())
    except Unavailable:
        # As Kafka does while it has no ids left: clients retry the request (KAFKA-14417).
        return ProducerResponse(ErrorCode.coordinator_load_in_progress)
    except Exception as error:
        return ProducerResponse(coordinator_error(error))
