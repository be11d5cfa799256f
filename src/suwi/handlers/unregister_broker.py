"""UnregisterBroker v0: removes what the metadata has of a broker that will not return."""

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.errors import outcome, reply
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class UnregisterBroker:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        return reply(request, {"throttle_time": 0, **await outcome(self._unregister(request))})

    async def _unregister(self, request: Request) -> None:
        await self._controller.active.reassignments.unregister(NodeId(request.message.broker_id))
