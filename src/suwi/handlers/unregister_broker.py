"""UnregisterBroker v0: removes what the metadata has of a broker that will not return."""

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.errors import error_fields, reply
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


async def unregister_broker(controller: ControllerElection, request: Request) -> Reply:
    try:
        await controller.active.reassignments.unregister(NodeId(request.message.broker_id))
    except BrokerError as error:
        return reply(request, error_fields(error))
    return reply(request, error_fields(None))
