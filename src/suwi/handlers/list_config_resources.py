"""ListConfigResources v0-v1: what has a configuration. v1: of the types asked for, or of all.

v0 is about client metrics only, of which there are none here. Groups: those that set something.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.controller.config_admin import Resource
from suwi.handlers.errors import reply
from suwi.metadata.image import ClusterImage
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replicas import Replicas

_TYPES_FROM: Final = 1


def _nothing(_: ClusterImage) -> Iterable[str]:
    return ()


_NAMES: Final[dict[int, Callable[[ClusterImage], Iterable[str]]]] = {
    Resource.TOPIC: lambda image: image.topics,
    Resource.BROKER: lambda image: map(str, image.brokers),
    Resource.BROKER_LOGGER: lambda image: map(str, image.brokers),
    Resource.CLIENT_METRICS: _nothing,
    Resource.GROUP: lambda image: image.group_configs,
}


class ListConfigResources:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Reply:
        types: Iterable[int] = (Resource.CLIENT_METRICS,)
        if request.version >= _TYPES_FROM:
            types = dict.fromkeys(request.message.resource_types) or _NAMES
        error = ErrorCode.none
        found: list[dict[str, Any]] = []
        if all(asked in _NAMES for asked in types):
            image = self._replicas.image
            found = [
                {"resource_name": name, "resource_type": int(asked)}
                for asked in types
                for name in _NAMES[asked](image)
            ]
        else:
            error = ErrorCode.unsupported_version
        fields = {"throttle_time": 0, "error_code": error, "config_resources": found}
        return reply(request, fields)
