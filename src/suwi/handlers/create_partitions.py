"""CreatePartitions v0-v3. Adds partitions to a topic; partitions are never removed.
v3: THROTTLING_QUOTA_EXCEEDED."""

from functools import partial
from typing import Any, Final

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check_topic
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import outcome, reply
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.errors import InvalidRequest
from suwi.net.answers import Reply
from suwi.net.client_quota_manager import mutating
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation

_QUOTA_ERROR_FROM: Final = 3
_ANSWERED: Final = 0  # in place of how often a topic is named


class CreatePartitions:
    def __init__(self, replicas: ReplicaManager, controller: ControllerElection) -> None:
        self._replicas = replicas
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times = await times_named(request, (topic.name for topic in asked.topics))
        results = SlicedItems(request, ("results",))
        deadline_s = deadline_of(request)
        for topic in asked.topics:
            if times[topic.name] == _ANSWERED:
                continue
            added = self._add(request, topic, times[topic.name], deadline_s)
            if times[topic.name] > 1:
                times[topic.name] = _ANSWERED
            await results.put({"name": topic.name, **await outcome(added)})
        return reply(request, {"results": results.take()})

    async def _add(self, request: Request, topic: Any, times_named: int, deadline_s: float) -> None:
        if times_named > 1:
            raise InvalidRequest(f"topic {topic.name!r} is named more than once")
        check_topic(request, Operation.ALTER, topic.name)
        validate_only = request.message.validate_only
        assignments = [each.broker_ids for each in topic.assignments or ()] or None
        added, is_strict = partial(self._added, topic), request.version >= _QUOTA_ERROR_FROM
        with mutating(request.quota, added, is_strict=is_strict):
            async with in_time(deadline_s):
                await self._controller.active.topics.add_partitions(
                    topic.name, topic.count, assignments, validate_only=validate_only
                )

    def _added(self, topic: Any) -> int:
        known = self._replicas.image.topics.get(topic.name)
        return int(topic.count) - (len(known.partitions) if known is not None else 0)
