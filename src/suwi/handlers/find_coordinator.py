"""FindCoordinator v0-v6. v1: key type. v4: several keys. The first call makes the internal topic.

A coordinator is the leader of the partition that its key belongs to. Key types: groups and
transactional ids.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.authorization import check
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.errors import error_fields, reply
from suwi.handlers.slices import list_in_slices, reply_in_slices, sliced
from suwi.metadata.image import NewTopic
from suwi.model.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    InvalidRequest,
    TopicAlreadyExists,
)
from suwi.net.answers import Answer, Exclusive, NoReply, Reply, reply_of
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType

log = logging.getLogger(__name__)

_KEY_TYPE_FROM: Final = 1
_SEVERAL_KEYS_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types."""
_RESOURCES: Final = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}

CreateTopic = Callable[[NewTopic, Request], Awaitable[None]]


@dataclass(eq=False)
class CoordinatorTopic:
    """The internal topic of one type of coordinator, created when it is first needed."""

    runtime: CoordinatorRuntime[Any]
    _new_topic: Callable[[], NewTopic]
    _create_topic: CreateTopic
    _creating: asyncio.Lock = field(default_factory=asyncio.Lock)
    _logged: str = ""
    """The last logged reason why it could not be created: clients retry several times a
    second."""

    @property
    def exists(self) -> bool:
        return self.runtime.partitions > 0

    async def create(self, request: Request) -> None:
        """Create the topic if it does not exist. `exists` tells whether that has succeeded."""
        async with self._creating:
            if self.exists:
                return
            try:
                await self._create_topic(self._new_topic(), request)
            except TopicAlreadyExists:
                pass
            except BrokerError as error:
                reason = str(error)
                if reason != self._logged:
                    log.warning(
                        "internal topic not created",
                        extra={"topic": self.runtime.topic, "reason": reason},
                    )
                self._logged = reason


class FindCoordinator:
    def __init__(self, topics: Mapping[int, CoordinatorTopic], replicas: ReplicaManager) -> None:
        """`topics` by key type."""
        self._topics = topics
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        topic = self._topics.get(_key_type(request))
        if topic is not None and not topic.exists:
            return Exclusive(self._create_and_reply(topic, request))
        return self._answer(request)

    async def _create_and_reply(self, topic: CoordinatorTopic, request: Request) -> Reply | NoReply:
        if await _may_ask(request):
            await topic.create(request)
        return await reply_of(self._answer(request))

    def _answer(self, request: Request) -> Reply | Exclusive:
        asked = request.message
        if request.version < _SEVERAL_KEYS_FROM:
            return reply(request, {**self._find(asked.key, request)})
        found = self._find_all(asked.coordinator_keys, request)
        return reply_in_slices(request, list_in_slices(request, "coordinators", found, {}))

    def _find_all(self, keys: Iterable[str], request: Request) -> Iterator[dict[str, Any] | None]:
        for key in keys:
            yield from hashing(key)
            yield {"key": key, **self._find(key, request)}

    def _find(self, key: str, request: Request) -> dict[str, Any]:
        key_type, image = _key_type(request), self._replicas.image
        topic = self._topics.get(key_type)
        try:
            if topic is None:
                raise InvalidRequest(f"coordinators of type {key_type} are unknown")
            check(request, Operation.DESCRIBE, _RESOURCES[key_type], key)
            state = image.partition(topic.runtime.partition_of(key))
            broker = image.unfenced_brokers.get(state.leader) if state is not None else None
            endpoint = broker.endpoint(request.client.listener) if broker is not None else None
            if broker is None or endpoint is None:
                raise CoordinatorNotAvailable(
                    "the coordinator's partition has no leader on this listener"
                )
        except BrokerError as error:
            return {**error_fields(error), "node_id": -1, "host": "", "port": -1}
        where = {"node_id": broker.id, "host": endpoint.host, "port": endpoint.port}
        return {**error_fields(None), **where}


async def _may_ask(request: Request) -> bool:
    """Whether the client may find the coordinator of at least one key."""
    asked, kind = request.message, _RESOURCES[_key_type(request)]
    keys = [asked.key] if request.version < _SEVERAL_KEYS_FROM else asked.coordinator_keys
    async for key in sliced(request, keys):
        if request.may(Operation.DESCRIBE, kind, key):
            return True
    return False


def _key_type(request: Request) -> int:
    return int(request.message.key_type) if request.version >= _KEY_TYPE_FROM else GROUP
