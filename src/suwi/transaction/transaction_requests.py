"""What the handlers of transactional requests have in common."""

from collections.abc import Callable
from typing import TypeVar

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.coordinator.runtime import coordinator_error
from suwi.metadata.store import Unavailable
from suwi.model.errors import InvalidRequest
from suwi.model.ids import TopicPartition
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionRuntime,
)
from suwi.transaction.transaction_metadata import (
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProducerResponse,
)

_Asked = TypeVar("_Asked", InitProducerIdRequest, EndTxnRequest)


def fenced_as(error: ErrorCode, version: int, producer_fenced_from: int) -> ErrorCode:
    """Older clients know INVALID_PRODUCER_EPOCH only (KAFKA-9911)."""
    if error is ErrorCode.producer_fenced and version < producer_fenced_from:
        return ErrorCode.invalid_producer_epoch
    return error


def begin_adding_partitions(
    runtime: TransactionRuntime, request: AddPartitionsRequest
) -> Call[TransactionCoordinatorShard]:
    """Returns the call, for `errors_of`."""
    call = Call(
        TransactionCoordinatorShard.add_partitions,
        request,
        request.transactional_id,
        writes=not request.verify_only,
        prolongs=request.verify_only,
    )
    if request.transactional_id:
        runtime.submit(call)
    else:
        call.fail(InvalidRequest("no transactional id"))
    return call


async def errors_of(call: Call[TransactionCoordinatorShard]) -> dict[TopicPartition, ErrorCode]:
    """The error of each partition that was to be added."""
    try:
        errors: dict[TopicPartition, ErrorCode] = await call
        return errors
    except Exception as error:
        return dict.fromkeys(call.asked.partitions, coordinator_error(error))


async def add_partitions(
    runtime: TransactionRuntime, request: AddPartitionsRequest
) -> dict[TopicPartition, ErrorCode]:
    return await errors_of(begin_adding_partitions(runtime, request))


async def ask_for_producer(
    runtime: TransactionRuntime,
    producer_ids: ProducerIds,
    decide: Callable[[TransactionCoordinatorShard, _Asked, Event], None],
    request: _Asked,
) -> ProducerResponse:
    """Let the shard decide, with a new producer id if it needs one."""
    try:
        while True:
            response: ProducerResponse = await runtime.submit(
                Call(decide, request, request.transactional_id)
            )
            if not response.needs_producer_id:
                return response
            request = request._replace(new_producer_id=await producer_ids.next())
    except Unavailable:
        # As Kafka does while it has no ids left: clients retry the request (KAFKA-14417).
        return ProducerResponse(ErrorCode.coordinator_load_in_progress)
    except Exception as error:
        return ProducerResponse(coordinator_error(error))
