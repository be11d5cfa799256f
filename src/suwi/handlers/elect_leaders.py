"""ElectLeaders v0-v2: preferred leader elections. v1: unclean elections (KIP-460)."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_PREFERRED = 0
_UNCLEAN = 1


class ElectLeaders:
    def __init__(self, controller: ControllerApi) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        kind = getattr(request.message, "election_type", _PREFERRED)
        asked = _asked(request.message.topic_partitions)
        try:
            if kind not in (_PREFERRED, _UNCLEAN):
                raise InvalidRequest(f"election type {kind} is unknown")
            async with in_time(deadline_of(request)):
                results = await self._controller.partitions.elect(asked, unclean=kind == _UNCLEAN)
        except BrokerError as error:
            results = dict.fromkeys(asked or (), error)
            return _reply(request, results, error_of(error)[0])
        return _reply(request, results, ErrorCode.none)


def _asked(topics: Any) -> list[TopicPartition] | None:
    if topics is None:
        return None
    partitions = (
        TopicPartition(topic.topic, PartitionIndex(index))
        for topic in topics
        for index in topic.partitions
    )
    return list(dict.fromkeys(partitions))


def _reply(
    request: Request, results: dict[TopicPartition, BrokerError | None], code: ErrorCode
) -> Reply:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, error in results.items():
        partition_code, message = (ErrorCode.none, None) if error is None else error_of(error)
        topics.setdefault(tp.topic, []).append(
            {
                "partition_id": tp.partition,
                "error_code": partition_code,
                "error_message": message,
            }
        )
    return reply(
        request,
        {
            "throttle_time": 0,
            "error_code": code,
            "replica_election_results": [
                {"topic": topic, "partition_result": partitions}
                for topic, partitions in topics.items()
            ],
        },
    )
