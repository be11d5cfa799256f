"""CreatePartitions v0-v3. Adds partitions to a topic; partitions are never removed."""

from typing import Final

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import reply
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.errors import BrokerError, InvalidRequest, error_of
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_ANSWERED: Final = 0  # in place of how often a topic is named


class CreatePartitions:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times = await times_named(request, (topic.name for topic in asked.topics))
        results = SlicedItems(request, ("results",))
        deadline_s = deadline_of(request)
        for topic in asked.topics:
            error, message = ErrorCode.none, None
            try:
                if times[topic.name] == _ANSWERED:
                    continue
                if times[topic.name] > 1:
                    times[topic.name] = _ANSWERED
                    raise InvalidRequest(f"topic {topic.name!r} is named more than once")
                assignments = topic.assignments
                async with in_time(deadline_s):
                    await self._controller.active.topics.add_partitions(
                        topic.name,
                        topic.count,
                        None if not assignments else [a.broker_ids for a in assignments],
                        validate_only=asked.validate_only,
                    )
            except BrokerError as problem:
                error, message = error_of(problem)
            await results.put({"name": topic.name, "error_code": error, "error_message": message})
        return reply(request, {"throttle_time": 0, "results": results.take()})
