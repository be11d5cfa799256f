"""ListConfigResources v0-v1: what has a configuration. v1: of the types asked for, or of all.

v0 is about client metrics only, of which there are none here, nor are there configurations of
loggers. Groups: those that set something.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.controller.configuration_control import Resource
from suwi.handlers.image_replies import ImageReplies, Steps
from suwi.metadata.image import ClusterImage
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.wire.codec import encode_items, encode_response, join_items

_TYPES_FROM: Final = 1
_NAMES_PER_PIECE: Final = 100


_NAMES: Final[dict[int, Callable[[ClusterImage], Iterable[str]]]] = {
    Resource.TOPIC: lambda image: image.topics,
    Resource.BROKER: lambda image: map(str, image.unfenced_brokers),
    Resource.BROKER_LOGGER: lambda _: (),
    Resource.CLIENT_METRICS: lambda _: (),
    Resource.GROUP: lambda image: image.group_configs,
}


class ListConfigResources:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._replies = ImageReplies()

    def __call__(self, request: Request) -> Answer:
        key, image = self._replies.key(request), self._replicas.image
        return self._replies.cached(key, image) or self._replies.build(
            request, key, image, _encode(request, image)
        )


def _encode(request: Request, image: ClusterImage) -> Steps:
    types: Iterable[int] = (Resource.CLIENT_METRICS,)
    if request.version >= _TYPES_FROM:
        types = dict.fromkeys(request.message.resource_types) or _NAMES
    error = ErrorCode.none
    if not all(asked in _NAMES for asked in types):
        error, types = ErrorCode.unsupported_version, ()
    pieces = []
    for asked in types:
        names = iter(_NAMES[asked](image))
        while portion := list(islice(names, _NAMES_PER_PIECE)):
            resources = [{"resource_name": n, "resource_type": int(asked)} for n in portion]
            pieces.append(
                encode_items(request.api_key, request.version, ("config_resources",), resources)
            )
            yield len(portion)
    fields = {"error_code": error, "config_resources": join_items(pieces)}
    return encode_response(request.api_key, request.version, fields)
