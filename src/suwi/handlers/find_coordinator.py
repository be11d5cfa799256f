"""FindCoordinator v0-v6. v1: key type. v4: several keys. The first call makes the internal topic.

A coordinator is the leader of the partition that its key belongs to. Key types: groups and
transactional ids.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.errors import reply
from suwi.handlers.slices import in_slices, list_in_slices
from suwi.metadata.image import NewTopic
from suwi.model.errors import BrokerError, CoordinatorNotAvailable, TopicAlreadyExists, error_of
from suwi.net.answers import Answer, Exclusive, NoReply, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_KEY_TYPE_FROM: Final = 1
_SEVERAL_KEYS_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types."""

CreateTopic = Callable[[NewTopic, Request], Awaitable[None]]


class CoordinatorTopic:
    """The internal topic of one type of coordinator, created when it is first needed."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[Any],
        new_topic: Callable[[], NewTopic],
        create_topic: CreateTopic,
    ) -> None:
        """`new_topic` describes the topic to create."""
        self.runtime = runtime
        self._new_topic = new_topic
        self._create_topic = create_topic
        self._creating = asyncio.Lock()
        self._logged = ""
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
        await topic.create(request)
        answer = self._answer(request)
        return answer if isinstance(answer, Reply) else await answer.reply

    def _answer(self, request: Request) -> Reply | Exclusive:
        asked = request.message
        if request.version < _SEVERAL_KEYS_FROM:
            return reply(request, {"throttle_time": 0, **self._find(asked.key, request)})
        found = self._find_all(asked.coordinator_keys, request)
        return in_slices(request, list_in_slices(request, "coordinators", found, {}))

    def _find_all(self, keys: Iterable[str], request: Request) -> Iterator[dict[str, Any] | None]:
        for key in keys:
            yield from hashing(key)
            yield {"key": key, **self._find(key, request)}

    def _find(self, key: str, request: Request) -> dict[str, Any]:
        key_type = _key_type(request)
        topic = self._topics.get(key_type)
        if topic is None:
            return _nobody(
                ErrorCode.invalid_request, f"coordinators of type {key_type} are unknown"
            )
        image = self._replicas.image
        try:
            state = image.partition(topic.runtime.partition_of(key))
            broker = image.unfenced_brokers.get(state.leader) if state is not None else None
            endpoint = broker.endpoint(request.listener) if broker is not None else None
            if broker is None or endpoint is None:
                raise CoordinatorNotAvailable(
                    "the coordinator's partition has no leader on this listener"
                )
        except BrokerError as error:
            return _nobody(*error_of(error))
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": broker.id,
            "host": endpoint.host,
            "port": endpoint.port,
        }


def _key_type(request: Request) -> int:
    return int(request.message.key_type) if request.version >= _KEY_TYPE_FROM else GROUP


def _nobody(error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
