"""ElectLeaders v0-v2: preferred leader elections. v1: unclean elections (KIP-460)."""

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedResponse, by_topic, sliced
from suwi.model.errors import BrokerError, InvalidRequest, error_of
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_PREFERRED = 0
_UNCLEAN = 1


class ElectLeaders:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        kind = getattr(request.message, "election_type", _PREFERRED)
        asked = await _asked(request)
        try:
            if kind not in (_PREFERRED, _UNCLEAN):
                raise InvalidRequest(f"election type {kind} is unknown")
            async with in_time(deadline_of(request)):
                results = await self._controller.active.partitions.elect(
                    asked, unclean=kind == _UNCLEAN
                )
        except BrokerError as error:
            results = dict.fromkeys(asked or (), error)
            return await _reply(request, results, error_of(error)[0])
        return await _reply(request, results, ErrorCode.none)


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


async def _reply(
    request: Request, results: dict[TopicPartition, BrokerError | None], code: ErrorCode
) -> Reply:
    response = SlicedResponse(request, arrays=("replica_election_results", "partition_result"))
    for topic, partitions in (await by_topic(request, results.items())).items():
        if response.begin_topic(topic=topic):
            await request.next_slice()
        for index, error in partitions:
            if response.add({"partition_id": index, **error_fields(error)}):
                await request.next_slice()
    return response.reply(error_code=code)
