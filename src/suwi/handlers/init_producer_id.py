"""InitProducerId v0-v5, for idempotent producers. There is no transaction coordinator yet."""

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import error_of, reply
from suwi.metadata.store import Unavailable
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.producer_ids import ProducerIds


class InitProducerId:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def __call__(self, request: Request) -> Reply:
        answer = {"throttle_time": 0, "producer_id": -1, "producer_epoch": -1}
        if request.message.transactional_id == "":
            return reply(request, {**answer, "error_code": ErrorCode.invalid_request})
        if request.message.transactional_id is not None:
            return reply(request, {**answer, "error_code": ErrorCode.coordinator_not_available})
        try:
            producer_id = await self._producer_ids.next()
        except Unavailable:
            # As Kafka does while it has no ids left: clients retry the request.
            return reply(request, {**answer, "error_code": ErrorCode.coordinator_load_in_progress})
        except Exception as error:
            return reply(request, {**answer, "error_code": error_of(error)[0]})
        answer |= {"producer_id": producer_id, "producer_epoch": 0}
        return reply(request, {**answer, "error_code": ErrorCode.none})
