"""CreatePartitions v0-v3. Adds partitions to a topic; partitions are never removed."""

from typing import Any, Final

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import outcome, reply
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.errors import InvalidRequest
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
            if times[topic.name] == _ANSWERED:
                continue
            added = self._add(topic, times[topic.name], deadline_s, asked.validate_only)
            if times[topic.name] > 1:
                times[topic.name] = _ANSWERED
            await results.put({"name": topic.name, **await outcome(added)})
        return reply(request, {"throttle_time": 0, "results": results.take()})

    async def _add(
        self, topic: Any, times_named: int, deadline_s: float, validate_only: bool
    ) -> None:
        if times_named > 1:
            raise InvalidRequest(f"topic {topic.name!r} is named more than once")
        assignments = [each.broker_ids for each in topic.assignments or ()] or None
        async with in_time(deadline_s):
            await self._controller.active.topics.add_partitions(
                topic.name, topic.count, assignments, validate_only=validate_only
            )
