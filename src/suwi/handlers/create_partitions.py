"""CreatePartitions v0-v3. Adds partitions to a topic; partitions are never removed."""

from collections import Counter

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class CreatePartitions:
    def __init__(self, controller: ControllerApi) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times_named = Counter(topic.name for topic in asked.topics)
        results = {}
        deadline_s = deadline_of(request)
        for topic in asked.topics:
            error, message = ErrorCode.none, None
            try:
                if times_named[topic.name] > 1:
                    raise InvalidRequest(f"topic {topic.name!r} is named more than once")
                assignments = topic.assignments
                async with in_time(deadline_s):
                    await self._controller.topics.add_partitions(
                        topic.name,
                        topic.count,
                        None if not assignments else [a.broker_ids for a in assignments],
                        validate_only=asked.validate_only,
                    )
            except BrokerError as problem:
                error, message = error_of(problem)
            results[topic.name] = {
                "name": topic.name,
                "error_code": error,
                "error_message": message,
            }
        return reply(request, {"throttle_time": 0, "results": list(results.values())})
