"""BrokerHeartbeat v0-v1, between brokers, only for controlled shutdown.

The response is sent when the broker no longer leads any partition that another broker can lead. A
broker's liveness is its session with the metadata store, not this heartbeat.
"""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.errors import reply
from suwi.model.errors import BrokerError, error_of
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


async def broker_heartbeat(controller: ControllerElection, request: Request) -> Reply:
    asked = request.message
    code = ErrorCode.none
    try:
        if asked.want_shut_down:
            await controller.active.partitions.shut_down(
                NodeId(asked.broker_id), asked.broker_epoch
            )
    except BrokerError as error:
        code, _ = error_of(error)
    return reply(
        request,
        {
            "error_code": code,
            "is_caught_up": True,
            "is_fenced": asked.want_shut_down,
            "should_shut_down": asked.want_shut_down and code == ErrorCode.none,
        },
    )
