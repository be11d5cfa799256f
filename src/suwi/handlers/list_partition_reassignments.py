"""ListPartitionReassignments v0: the reassignments that are in progress (KIP-455)."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.errors import error_of, reply
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class ListPartitionReassignments:
    def __init__(self, controller: ControllerApi) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message.topics
        wanted = None
        if asked is not None:
            wanted = {topic.name: frozenset(topic.partition_indexes) for topic in asked}
        error, message = ErrorCode.none, None
        found: dict[TopicPartition, PartitionState] = {}
        try:
            found = self._controller.reassignments.in_progress(wanted)
        except BrokerError as problem:
            error, message = error_of(problem)
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, state in found.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "replicas": state.replicas,
                    "adding_replicas": state.adding_replicas,
                    "removing_replicas": state.removing_replicas,
                }
            )
        return reply(
            request,
            {
                "throttle_time": 0,
                "error_code": error,
                "error_message": message,
                "topics": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
            },
        )
