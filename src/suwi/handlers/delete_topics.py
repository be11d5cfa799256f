"""DeleteTopics v1-v6. v6: topics by name or by topic id."""

from collections.abc import Iterator
from uuid import UUID

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields, reply
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, InvalidRequest, TopicDeletionDisabled
from suwi.model.ids import NO_TOPIC_ID
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_TOPIC_DELETION_DISABLED_FROM = 3
_TOPIC_IDS_FROM = 6


class DeleteTopics:
    def __init__(self, controller: ControllerElection, config: BrokerConfig) -> None:
        self._controller = controller
        self._config = config

    async def __call__(self, request: Request) -> Reply:
        responses = SlicedItems(request, ("responses",))
        deadline_s = deadline_of(request)
        asked = await times_named(request, _asked(request))
        for (name, topic_id), times in asked.items():
            try:
                if times > 1:
                    raise InvalidRequest(f"a topic is named {times} times")
                if not self._config.delete_topic_enable:
                    raise _disabled(request.version)
                if (name is None) == (topic_id is None):
                    raise InvalidRequest("name a topic either by its name or by its id")
                async with in_time(deadline_s):
                    topic = await self._controller.active.topics.delete(name, topic_id)
                answer = {"name": topic.name, "topic_id": topic.id, **error_fields(None)}
            except BrokerError as error:
                answer = {"name": name, "topic_id": topic_id, **error_fields(error)}
            await responses.put(answer)
        return reply(request, {"throttle_time": 0, "responses": responses.take()})


def _asked(request: Request) -> Iterator[tuple[str | None, UUID | None]]:
    if request.version < _TOPIC_IDS_FROM:
        return ((name, None) for name in request.message.topic_names)
    return (
        (topic.name, None if topic.topic_id == NO_TOPIC_ID else topic.topic_id)
        for topic in request.message.topics
    )


def _disabled(version: int) -> BrokerError:
    if version < _TOPIC_DELETION_DISABLED_FROM:
        return InvalidRequest("delete.topic.enable is false")
    return TopicDeletionDisabled("delete.topic.enable is false")
