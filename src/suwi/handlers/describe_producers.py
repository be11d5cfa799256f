"""DescribeProducers v0. The producer state of a partition, idempotent and transactional."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import error_of
from suwi.handlers.slices import Sliced, SlicedResponse, counting, in_slices
from suwi.model.errors import InvalidRequest
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


class DescribeProducers:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._answer(request))

    def _answer(self, request: Request) -> Sliced:
        times: Counter[tuple[str, int]] = Counter()
        asked = (
            (topic.name, index)
            for topic in request.message.topics
            for index in topic.partition_indexes
        )
        yield from counting(times, asked)
        response = SlicedResponse(request)
        for topic in request.message.topics:
            if response.begin_topic(name=topic.name):
                yield
            for index in topic.partition_indexes:
                described = self._describe(topic.name, index, times[topic.name, index])
                if response.add(described, 1 + len(described["active_producers"])):
                    yield
        return response.reply()

    def _describe(self, topic: str, index: int, times_named: int) -> dict[str, Any]:
        error, message, producers = ErrorCode.none, None, list[dict[str, Any]]()
        try:
            if times_named > 1:  # a few bytes each in the request, kilobytes in the response
                raise InvalidRequest(f"{topic}-{index} is named more than once")
            log = self._replicas.leader_of(topic, index).log
            producers = [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.last_timestamp,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "current_txn_start_offset": producer.txn_first_offset,
                }
                for producer in log.producers.all()
            ]
        except Exception as problem:
            error, message = error_of(problem)
        return {
            "partition_index": index,
            "error_code": error,
            "error_message": message,
            "active_producers": producers,
        }
