"""FindCoordinator v0-v6. v4: several keys. Always responds that there is no coordinator yet.

It is served because librdkafka compresses with lz4 only if the broker advertises it.
"""

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.net.answers import Answer
from suwi.net.dispatch import Request

_SEVERAL_KEYS_FROM = 4


def find_coordinator(request: Request) -> Answer:
    no_coordinator = {
        "error_code": ErrorCode.coordinator_not_available,
        "error_message": "this broker has no group and transaction coordinators yet",
        "node_id": -1,
        "host": "",
        "port": -1,
    }
    if request.version < _SEVERAL_KEYS_FROM:
        return reply(request, {"throttle_time": 0, **no_coordinator})
    coordinators = [{"key": key, **no_coordinator} for key in request.message.coordinator_keys]
    return reply(request, {"throttle_time": 0, "coordinators": coordinators})
