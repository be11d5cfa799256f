"""Metadata v0-v13. Brokers, topics, partitions and their leaders; auto-creates topics.

v1: no topics means none, null means all. v4: allow_auto_topic_creation. v10: topic ids.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.handlers.authorization import authorized_operations, check_topic
from suwi.handlers.image_replies import ImageReplies, Key, Pieces, Steps, run_sliced
from suwi.handlers.slices import sliced
from suwi.metadata.image import BrokerInfo, ClusterImage, NewTopic, PartitionState, Topic
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import (
    BrokerError,
    LeaderNotAvailable,
    NotController,
    RequestTimedOut,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_of,
)
from suwi.model.ids import NO_NODE, NO_TOPIC_ID
from suwi.model.topic_names import INTERNAL_TOPICS, check_topic_name
from suwi.net.answers import Answer, Exclusive, NoReply, Reply, reply_of
from suwi.net.dispatch import Request
from suwi.replica.peers import SuspectedBrokers
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.wire.codec import encode_items, encode_response, join_items
from suwi.wire.encoder import EncodedItems

_ALLOW_AUTO_CREATION_FROM = 4
_WITH_CLUSTER_OPERATIONS = range(8, 11)
_PARTITIONS_PER_PIECE: Final = 200
_TOPICS_AT_ONCE: Final = 500
_TOPIC_UNITS: Final = 2  # cost of a topic without its partitions; see `image_replies.Steps`
_CREATION_S_MAX: Final = 5.0
"""No creation of a missing topic begins later: one request may name 100,000."""

CreateTopic: TypeAlias = Callable[[NewTopic, Request], Awaitable[object]]
"""Creates a topic through the active controller, for a request. Raises a `BrokerError`."""


@dataclass(eq=False)
class Metadata:
    _replicas: ReplicaManager
    _create: CreateTopic
    _config: BrokerConfig
    _suspected_brokers: SuspectedBrokers
    _replies: ImageReplies = field(default_factory=ImageReplies)

    def __call__(self, request: Request) -> Answer:
        key = self._replies.key(request)
        if self._suspected_brokers.affects(lambda image: _topics(image, request)):
            return Exclusive(self._confirm_brokers_and_reply(request, key))
        return self._answer_now(request, key)

    async def _confirm_brokers_and_reply(
        self, request: Request, key: Key | None
    ) -> Reply | NoReply:
        await self._suspected_brokers.wait_for_election(lambda image: _topics(image, request))
        return await reply_of(self._answer_now(request, key))

    def _answer_now(self, request: Request, key: Key | None) -> Reply | Exclusive:
        image = self._replicas.image
        cached = self._replies.cached(key, image)
        if cached is not None:
            return cached  # it exists only if no topic had to be created
        if not _asks_for_all(request) and self._may_create(request):
            if len(request.message.topics) > _TOPICS_AT_ONCE:
                return Exclusive(self._answer_many(request, key))
            missing = [name for name in _missing(request, image) if name is not None]
            if missing:
                return Exclusive(self._create_and_reply(request, missing))
        return self._replies.build(request, key, image, self._encode(request, {}, image))

    async def _answer_many(self, request: Request, key: Key | None) -> Reply | NoReply:
        image = self._replicas.image
        looked_up = sliced(request, _missing(request, image), _TOPICS_AT_ONCE)
        missing = {name: None async for name in looked_up if name is not None}
        if missing:
            return await self._create_and_reply(request, list(missing))
        image = self._replicas.image
        steps = self._encode(request, {}, image)
        return await reply_of(self._replies.build(request, key, image, steps))

    def _may_create(self, request: Request) -> bool:
        return self._config.auto_create_topics_enable and (
            request.version < _ALLOW_AUTO_CREATION_FROM or request.message.allow_auto_topic_creation
        )

    async def _create_and_reply(self, request: Request, missing: Sequence[str]) -> Reply:
        failed: dict[str, BrokerError] = {}
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _CREATION_S_MAX
        async for name in sliced(request, missing):
            new = NewTopic(
                name, self._config.num_partitions, self._config.default_replication_factor
            )
            try:
                if not request.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
                    check_topic(request, Operation.CREATE, name)
                if loop.time() > last_s:
                    raise RequestTimedOut("there are more topics to create")
                await self._create(new, request)
            except TopicAlreadyExists:
                pass  # another client created it at the same time
            except (NotController, RequestTimedOut, ThrottlingQuotaExceeded):
                # The others would have to wait as long; clients ask for them again. Older
                # librdkafka takes other errors for permanent, and fails the records of the topic.
                later = LeaderNotAvailable("the topic is not created yet")
                left = (topic for topic in missing if topic not in self._replicas.image.topics)
                failed = {**dict.fromkeys(left, later), **failed}
                break
            except BrokerError as error:
                failed[name] = error
        return Reply([await run_sliced(self._encode(request, failed, self._replicas.image))])

    def _encode(
        self, request: Request, failed: Mapping[str, BrokerError], image: ClusterImage
    ) -> Steps:
        """The body of the reply; `failed` has the errors of topics that could not be created."""
        pieces = Pieces()
        for asked, found in _found(request, failed, image):
            if found is None:
                yield 1
                continue
            if isinstance(found, Topic):
                piece = yield from self._describe(found, request, image)
            else:
                piece = self._refuse(asked, found, request)
            pieces.add(piece)
            yield _TOPIC_UNITS
        return self._encode_whole(request, image, pieces.all())

    def _refuse(self, asked: Any, error: BrokerError, request: Request) -> EncodedItems:
        name, topic_id = asked.name, _id_of(asked)
        code, _ = error_of(error)
        fields = {
            "error_code": code,
            # Up to v11 the name must not be null.
            "name": name if name is not None or request.version >= 12 else "",
            "topic_id": topic_id,
            "partitions": (),
        }
        return encode_items(request.api_key, request.version, ("topics",), [fields])

    def _describe(
        self, topic: Topic, request: Request, image: ClusterImage
    ) -> Generator[int, None, EncodedItems]:
        pieces = []
        for first in range(0, len(topic.partitions), _PARTITIONS_PER_PIECE):
            states = topic.partitions[first : first + _PARTITIONS_PER_PIECE]
            fields = [partition_fields(n, state, image) for n, state in enumerate(states, first)]
            pieces.append(
                encode_items(request.api_key, request.version, ("topics", "partitions"), fields)
            )
            yield len(states)
        asked = getattr(request.message, "include_topic_authorized_operations", False)
        whole = {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.name in INTERNAL_TOPICS,
            "partitions": join_items(pieces),
            "topic_authorized_operations": authorized_operations(
                request, ResourceType.TOPIC, topic.name, asked=asked
            ),
        }
        return encode_items(request.api_key, request.version, ("topics",), [whole])

    def _encode_whole(self, request: Request, image: ClusterImage, topics: EncodedItems) -> bytes:
        operations = {}
        # Only where it exists: the encoder would look for the field in all older versions.
        if request.version in _WITH_CLUSTER_OPERATIONS:
            asked = getattr(request.message, "include_cluster_authorized_operations", False)
            operations["cluster_authorized_operations"] = authorized_operations(
                request, ResourceType.CLUSTER, CLUSTER_NAME, asked=asked
            )
        return encode_response(
            request.api_key,
            request.version,
            {
                **operations,
                # Includes brokers that have just left, until their sessions end: librdkafka removes
                # a missing broker before it moves the broker's partitions, and stalls for a second.
                "brokers": broker_fields(
                    image.registered_brokers.values(), request.client.listener, "node_id"
                ),
                "cluster_id": image.cluster_id,
                "controller_id": self._controller(image),
                "topics": topics,
                "error_code": ErrorCode.none,
            },
        )

    def _controller(self, image: ClusterImage) -> int:
        """Where to send what the controller has to do. Between two controllers that is this broker:
        every broker forwards, and clients may wait long for a change from -1."""
        elected, own = image.controller, self._config.node_id
        if elected is not None and elected in image.unfenced_brokers:
            return elected
        return own if own in image.unfenced_brokers else NO_NODE


def partition_fields(index: int, state: PartitionState, image: ClusterImage) -> dict[str, Any]:
    """The leader and the replicas of a partition."""
    has_leader = state.leader in image.unfenced_brokers
    return {
        "error_code": ErrorCode.none if has_leader else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": state.leader if has_leader else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": tuple(r for r in state.replicas if r not in image.unfenced_brokers),
    }


def broker_fields(
    brokers: Iterable[BrokerInfo], listener: str, id_name: str
) -> list[dict[str, Any]]:
    """The brokers that have an endpoint on a listener, with its host and port."""
    found = []
    for broker in brokers:
        endpoint = broker.endpoint(listener)
        if endpoint is not None:
            found.append(
                {
                    id_name: broker.id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": broker.rack,
                }
            )
    return found


def _asks_for_all(request: Request) -> bool:
    asked = request.message.topics
    return asked is None or (request.version == 0 and not asked)


def _topics(image: ClusterImage, request: Request) -> Iterator[Topic]:
    """The requested topics that exist."""
    if _asks_for_all(request):
        yield from image.topics.values()
        return
    for asked in request.message.topics:
        topic_id = _id_of(asked)
        by_id = None if topic_id is None else image.topics_by_id.get(topic_id)
        topic = by_id or image.topics.get(asked.name)
        if topic is not None:
            yield topic


def _missing(request: Request, image: ClusterImage) -> Iterator[str | None]:
    """The requested names of missing topics that may be auto-created; None for any other topic."""
    for topic in _distinct(request.message.topics):
        may_be_created = (
            topic is not None
            and _id_of(topic) is None
            and topic.name is not None
            and topic.name not in image.topics
            # Coordinators create the internal topics, with their own number of partitions.
            and topic.name not in INTERNAL_TOPICS
            and request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        )
        yield topic.name if may_be_created else None


def _found(
    request: Request, failed: Mapping[str, BrokerError], image: ClusterImage
) -> Iterator[tuple[Any, Topic | BrokerError | None]]:
    """Each requested topic, or the error that says why it cannot be returned; None for repetitions
    of a topic, and for what the client may not see if it asks for all."""
    if _asks_for_all(request):
        for topic in image.topics.values():
            is_visible = request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
            yield None, topic if is_visible else None
        return
    for asked in _distinct(request.message.topics):
        if asked is None:
            yield None, None
            continue
        try:
            yield asked, failed.get(asked.name) or _find(request, asked, image)
        except BrokerError as error:
            yield asked, error


def _find(request: Request, asked: Any, image: ClusterImage) -> Topic:
    topic_id, name = _id_of(asked), asked.name
    if topic_id is not None:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        check_topic(request, Operation.DESCRIBE, topic.name)
        return topic
    check_topic(request, Operation.DESCRIBE, name or "")
    return find_topic(name or "", image)


def find_topic(name: str, image: ClusterImage) -> Topic:
    """Raises InvalidTopic, UnknownTopicOrPartition."""
    check_topic_name(name)
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    return topic


def _distinct(asked: Sequence[Any]) -> Iterator[Any]:
    """Each topic once, as in Kafka: a few bytes in the request return all its partitions. None for
    each repetition, so that many can be skipped in slices."""
    seen: set[UUID | str | None] = set()
    for topic in asked:
        key = _id_of(topic) or topic.name
        yield None if key in seen else topic
        seen.add(key)


def _id_of(asked: Any) -> UUID | None:
    """The requested topic id; None if the topic was requested by name."""
    topic_id = getattr(asked, "topic_id", None)
    return None if topic_id is None or topic_id == NO_TOPIC_ID else topic_id
