"""AlterPartitionReassignments v0-v1 and ListPartitionReassignments v0: moves replicas to other
brokers, cancels that, and lists what is in progress (KIP-455).

AlterPartitionReassignments v1: may refuse to change the replication factor (KIP-860).
"""

from typing import Any

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


async def alter_partition_reassignments(controller: ControllerElection, request: Request) -> Reply:
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
            results = await controller.active.reassignments.reassign(
                targets, allow_replication_factor_change=allows_change
            )
    except BrokerError as problem:
        error = error_fields(problem)
    response = SlicedResponse(request, arrays=("responses", "partitions"))
    await response.put_by_topic(
        "name", results.items(), lambda i, error: {"partition_index": i, **error_fields(error)}
    )
    return response.reply(allow_replication_factor_change=allows_change, **error)


async def list_partition_reassignments(controller: ControllerElection, request: Request) -> Reply:
    asked = request.message.topics
    wanted = None
    if asked is not None:
        wanted = {
            topic.name: frozenset(topic.partition_indexes) async for topic in sliced(request, asked)
        }
    error = error_fields(None)
    found: dict[TopicPartition, PartitionState] = {}
    try:
        found = await controller.active.reassignments.in_progress(wanted)
    except BrokerError as problem:
        error = error_fields(problem)
    response = SlicedResponse(request)
    await response.put_by_topic("name", found.items(), _answer)
    return response.reply(**error)


def _answer(index: int, state: PartitionState) -> dict[str, Any]:
    return {
        "partition_index": index,
        "replicas": state.replicas,
        "adding_replicas": state.adding_replicas,
        "removing_replicas": state.removing_replicas,
    }
