"""ListPartitionReassignments v0: the reassignments that are in progress (KIP-455)."""

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class ListPartitionReassignments:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message.topics
        wanted = None
        if asked is not None:
            wanted = {
                topic.name: frozenset(topic.partition_indexes)
                async for topic in sliced(request, asked)
            }
        error = error_fields(None)
        found: dict[TopicPartition, PartitionState] = {}
        try:
            found = await self._controller.active.reassignments.in_progress(wanted)
        except BrokerError as problem:
            error = error_fields(problem)
        response = SlicedResponse(request)
        topic = None
        for tp, state in found.items():
            if tp.topic != topic:
                topic = tp.topic
                if response.begin_topic(name=topic):
                    await request.next_slice()
            if response.add(
                {
                    "partition_index": tp.partition,
                    "replicas": state.replicas,
                    "adding_replicas": state.adding_replicas,
                    "removing_replicas": state.removing_replicas,
                }
            ):
                await request.next_slice()
        return response.reply(**error)
