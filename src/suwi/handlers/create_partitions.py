"""CreatePartitions v0-v3. Adds partitions to a topic; partitions are never removed.
v3: THROTTLING_QUOTA_EXCEEDED."""

from functools import partial
from operator import attrgetter
from typing import Any, Final

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check_topic
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import outcome
from suwi.handlers.slices import SlicedItems, each_named
from suwi.model.errors import InvalidRequest
from suwi.net.answers import Reply
from suwi.net.client_quota_manager import mutating
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation

_QUOTA_ERROR_FROM: Final = 3
_NAME: Final = attrgetter("name")


class CreatePartitions:
    def __init__(self, replicas: ReplicaManager, controller: ControllerElection) -> None:
        self._replicas = replicas
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        results, deadline_s = SlicedItems(request, ("results",)), deadline_of(request)
        async for topic, times in each_named(request, request.message.topics, _NAME):
            added = await outcome(self._add(request, topic, times, deadline_s))
            await results.put({"name": topic.name, **added})
        return results.reply()

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
