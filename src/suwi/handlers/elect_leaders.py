"""ElectLeaders v0-v2: preferred leader elections. v1: unclean elections (KIP-460)."""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.model.errors import BrokerError, InvalidRequest, error_of
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType

_PREFERRED = 0
_UNCLEAN = 1


async def elect_leaders(controller: ControllerElection, request: Request) -> Reply:
    kind = getattr(request.message, "election_type", _PREFERRED)
    asked, code = await _asked(request), ErrorCode.none
    try:
        check(request, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        if kind not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequest(f"election type {kind} is unknown")
        async with in_time(deadline_of(request)):
            results = await controller.active.partitions.elect(asked, unclean=kind == _UNCLEAN)
    except BrokerError as error:
        results, code = dict.fromkeys(asked or (), error), error_of(error)[0]
    response = SlicedResponse(request, arrays=("replica_election_results", "partition_result"))
    await response.put_by_topic(
        "topic", results.items(), lambda i, error: {"partition_id": i, **error_fields(error)}
    )
    return response.reply(error_code=code)


async def _asked(request: Request) -> list[TopicPartition] | None:
    topics = request.message.topic_partitions
    if topics is None:
        return None
    named = ((topic.topic, index) for topic in topics for index in topic.partitions)
    distinct = {
        TopicPartition(name, PartitionIndex(index)): None
        async for name, index in sliced(request, named)
    }
    return list(distinct)
