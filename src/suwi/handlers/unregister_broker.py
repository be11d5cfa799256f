"""UnregisterBroker v0: removes what the metadata has of a broker that will not return."""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.errors import reply
from suwi.model.errors import BrokerError, error_of
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class UnregisterBroker:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        error, message = ErrorCode.none, None
        try:
            await self._controller.active.reassignments.unregister(
                NodeId(request.message.broker_id)
            )
        except BrokerError as problem:
            error, message = error_of(problem)
        fields = {"throttle_time": 0, "error_code": error, "error_message": message}
        return reply(request, fields)
