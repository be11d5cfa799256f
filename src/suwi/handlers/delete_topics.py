"""DeleteTopics v1-v6. v5: THROTTLING_QUOTA_EXCEEDED. v6: topics by name or by topic id."""

from collections.abc import Iterator
from functools import partial
from uuid import UUID

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check_topic
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import (
    BrokerError,
    InvalidRequest,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_TOPIC_ID
from suwi.net.answers import Reply
from suwi.net.client_quota_manager import mutating
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType

_TOPIC_DELETION_DISABLED_FROM = 3
_QUOTA_ERROR_FROM = 5
_TOPIC_IDS_FROM = 6


class DeleteTopics:
    def __init__(
        self, replicas: ReplicaManager, controller: ControllerElection, config: BrokerConfig
    ) -> None:
        self._replicas = replicas
        self._controller = controller
        self._config = config

    async def __call__(self, request: Request) -> Reply:
        responses = SlicedItems(request, ("responses",))
        deadline_s = deadline_of(request)
        asked = await times_named(request, _asked(request))
        quota, is_strict = request.quota, request.version >= _QUOTA_ERROR_FROM
        deletes_all = request.may(Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME)
        for (name, topic_id), times in asked.items():
            shown = name
            try:
                if times > 1:
                    raise InvalidRequest(f"a topic is named {times} times")
                if not self._config.delete_topic_enable:
                    is_old = request.version < _TOPIC_DELETION_DISABLED_FROM
                    error_type = InvalidRequest if is_old else TopicDeletionDisabled
                    raise error_type("delete.topic.enable is false")
                if (name is None) == (topic_id is None):
                    raise InvalidRequest("name a topic either by its name or by its id")
                if not deletes_all:
                    known = name or self._name_of(topic_id)
                    if request.may(Operation.DESCRIBE, ResourceType.TOPIC, known):
                        shown = known
                        if known not in self._replicas.image.topics:
                            raise UnknownTopicOrPartition(f"topic {known!r} does not exist")
                    check_topic(request, Operation.DELETE, known, shown or topic_id)
                partitions = partial(self._partitions, name, topic_id)
                with mutating(quota, partitions, is_strict=is_strict):
                    async with in_time(deadline_s):
                        topic = await self._controller.active.topics.delete(name, topic_id)
                answer = {"name": topic.name, "topic_id": topic.id, **error_fields(None)}
            except BrokerError as error:
                answer = {"name": shown, "topic_id": topic_id, **error_fields(error)}
            await responses.put(answer)
        return responses.reply()

    def _partitions(self, name: str | None, topic_id: UUID | None) -> int:
        image = self._replicas.image
        topic = image.topics_by_id.get(topic_id) if topic_id else image.topics.get(name or "")
        return len(topic.partitions) if topic is not None else 0

    def _name_of(self, topic_id: UUID | None) -> str:
        topic = None if topic_id is None else self._replicas.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic.name


def _asked(request: Request) -> Iterator[tuple[str | None, UUID | None]]:
    if request.version < _TOPIC_IDS_FROM:
        return ((name, None) for name in request.message.topic_names)
    return (
        (topic.name, None if topic.topic_id == NO_TOPIC_ID else topic.topic_id)
        for topic in request.message.topics
    )
