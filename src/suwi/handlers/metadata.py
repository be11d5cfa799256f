"""Metadata v0-v13. Who leads which partition, and where; creates topics that are asked for.

v1: no topics means none, null means all. v4: the client may forbid creation. v10: topic ids.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.controller.topic_admin import NewTopic
from suwi.controller.topic_names import INTERNAL_TOPICS, check_topic_name
from suwi.handlers import authorized_operations
from suwi.handlers.errors import error_of, reply
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState, Topic
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import (
    BrokerError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_TOPIC_ID
from suwi.net.answers import Answer, Exclusive, NoReply, Reply
from suwi.net.dispatch import Request
from suwi.replica.doubts import Doubts
from suwi.replica.replicas import Replicas

_CREATION_CAN_BE_FORBIDDEN_FROM = 4

CreateTopic: TypeAlias = Callable[[NewTopic, Request], Awaitable[object]]
"""Has the controller make a topic, whoever that is, for a request. Raises a `BrokerError`."""


class Metadata:
    def __init__(
        self, replicas: Replicas, create: CreateTopic, config: BrokerConfig, doubts: Doubts
    ) -> None:
        self._replicas = replicas
        self._create = create
        self._config = config
        self._doubts = doubts

    def __call__(self, request: Request) -> Answer:
        if self._doubts.concern(lambda image: _topics(image, request)):
            return Exclusive(self._settle_and_reply(request))
        return self._answer_now(request)

    async def _settle_and_reply(self, request: Request) -> Reply | NoReply:
        await self._doubts.settled(lambda image: _topics(image, request))
        answer = self._answer_now(request)
        return answer if isinstance(answer, Reply) else await answer.reply

    def _answer_now(self, request: Request) -> Reply | Exclusive:
        image = self._replicas.image
        asked = request.message.topics
        if _asks_for_all(request):
            answers = [self._describe(topic, request) for topic in image.topics.values()]
            return self._reply(request, answers)
        asked = _without_repetition(asked)
        missing = [
            topic.name
            for topic in asked
            if _id_of(topic) is None
            and topic.name is not None
            and topic.name not in image.topics
            # Internal topics are made by their coordinators, with partitions of their own number.
            and topic.name not in INTERNAL_TOPICS
        ]
        if missing and self._may_create(request):
            return Exclusive(self._create_and_reply(request, asked, missing))
        return self._reply(request, [self._answer(topic, request) for topic in asked])

    def _may_create(self, request: Request) -> bool:
        return self._config.auto_create_topics_enable and (
            request.version < _CREATION_CAN_BE_FORBIDDEN_FROM
            or request.message.allow_auto_topic_creation
        )

    async def _create_and_reply(
        self, request: Request, asked: Sequence[Any], missing: Sequence[str]
    ) -> Reply:
        failed: dict[str, Exception] = {}
        for name in missing:
            new = NewTopic(
                name, self._config.num_partitions, self._config.default_replication_factor
            )
            try:
                await self._create(new, request)
            except TopicAlreadyExists:
                pass  # Another client asked for it at the same time.
            except BrokerError as error:
                failed[name] = error
        answers = [
            self._refusal(topic.name, None, failed[topic.name], request)
            if topic.name in failed
            else self._answer(topic, request)
            for topic in asked
        ]
        return self._reply(request, answers)

    def _answer(self, asked: Any, request: Request) -> dict[str, Any]:
        topic_id, name = _id_of(asked), asked.name
        image = self._replicas.image
        try:
            if topic_id is not None:
                topic = image.topics_by_id.get(topic_id)
                if topic is None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
                return self._describe(topic, request)
            check_topic_name(name or "")
            topic = image.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            return self._describe(topic, request)
        except BrokerError as error:
            return self._refusal(name, topic_id, error, request)

    def _refusal(
        self, name: str | None, topic_id: UUID | None, error: Exception, request: Request
    ) -> dict[str, Any]:
        code, _ = error_of(error)
        # Up to v11 the name must not be null.
        return {
            "error_code": code,
            "name": name if name is not None or request.version >= 12 else "",
            "topic_id": topic_id,
            "partitions": (),
        }

    def _describe(self, topic: Topic, request: Request) -> dict[str, Any]:
        image = self._replicas.image
        partitions = [
            partition_fields(index, state, image) for index, state in enumerate(topic.partitions)
        ]
        asked = getattr(request.message, "include_topic_authorized_operations", False)
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.name in INTERNAL_TOPICS,
            "partitions": partitions,
            "topic_authorized_operations": authorized_operations.on_topic(asked),
        }

    def _reply(self, request: Request, topics: list[dict[str, Any]]) -> Reply:
        image = self._replicas.image
        asked = getattr(request.message, "include_cluster_authorized_operations", False)
        return reply(
            request,
            {
                "throttle_time": 0,
                # Also those that have just gone, until their sessions end: librdkafka drops who is
                # missing here before it has moved what that one led, and stands still for a second.
                "brokers": broker_fields(image.registered.values(), request.listener, "node_id"),
                "cluster_id": image.cluster_id,
                "controller_id": -1 if image.controller is None else image.controller,
                "topics": topics,
                "cluster_authorized_operations": authorized_operations.on_cluster(asked),
                "error_code": ErrorCode.none,
            },
        )


def partition_fields(index: int, state: PartitionState, image: ClusterImage) -> dict[str, Any]:
    """Who leads a partition and who has replicas of it."""
    has_leader = state.leader in image.brokers
    return {
        "error_code": ErrorCode.none if has_leader else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": state.leader if has_leader else -1,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": tuple(r for r in state.replicas if r not in image.brokers),
    }


def broker_fields(
    brokers: Iterable[BrokerInfo], listener: str, id_name: str
) -> list[dict[str, Any]]:
    """Those that can be reached through a listener, each with its address there."""
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
    """Those that are asked for and exist."""
    if _asks_for_all(request):
        yield from image.topics.values()
        return
    for asked in request.message.topics:
        topic_id = _id_of(asked)
        by_id = None if topic_id is None else image.topics_by_id.get(topic_id)
        topic = by_id or image.topics.get(asked.name)
        if topic is not None:
            yield topic


def _without_repetition(asked: Sequence[Any]) -> list[Any]:
    """Each topic once, as in Kafka: a few bytes ask for all its partitions."""
    return list({_id_of(topic) or topic.name: topic for topic in asked}.values())


def _id_of(asked: Any) -> UUID | None:
    """The topic id that was asked for; None where it was a name."""
    topic_id = getattr(asked, "topic_id", None)
    return None if topic_id is None or topic_id == NO_TOPIC_ID else topic_id
