"""AlterPartitionReassignments v0-v1: moves replicas to other brokers, or cancels it (KIP-455).

v1: may refuse to change the replication factor (KIP-860).
"""

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedResponse, by_topic, sliced
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class AlterPartitionReassignments:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        allows_change = getattr(asked, "allow_replication_factor_change", True)
        named = ((topic.name, each) for topic in asked.topics for each in topic.partitions)
        targets = {
            TopicPartition(name, PartitionIndex(partition.partition_index)): partition.replicas
            async for name, partition in sliced(request, named)
        }
        error = error_fields(None)
        results: dict[TopicPartition, BrokerError | None] = {}
        try:
            async with in_time(deadline_of(request)):
                results = await self._controller.active.reassignments.reassign(
                    targets, allow_replication_factor_change=allows_change
                )
        except BrokerError as problem:
            error = error_fields(problem)
        response = SlicedResponse(request, arrays=("responses", "partitions"))
        for topic, partitions in (await by_topic(request, results.items())).items():
            if response.begin_topic(name=topic):
                await request.next_slice()
            for index, result in partitions:
                if response.add({"partition_index": index, **error_fields(result)}):
                    await request.next_slice()
        return response.reply(allow_replication_factor_change=allows_change, **error)
