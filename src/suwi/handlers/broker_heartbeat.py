"""BrokerHeartbeat v0-v1, between brokers, for one purpose: a broker that wants to shut down.

It is answered when the broker leads nothing any more that another can lead. That a broker lives is
said by its session with the store, not by heartbeats.
"""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class BrokerHeartbeat:
    def __init__(self, office: ControllerApi) -> None:
        self._office = office

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        code = ErrorCode.none
        try:
            if asked.want_shut_down:
                await self._office.partitions.shut_down(NodeId(asked.broker_id), asked.broker_epoch)
        except BrokerError as error:
            code, _ = error_of(error)
        return reply(
            request,
            {
                "throttle_time": 0,
                "error_code": code,
                "is_caught_up": True,
                "is_fenced": asked.want_shut_down,
                "should_shut_down": asked.want_shut_down and code == ErrorCode.none,
            },
        )
