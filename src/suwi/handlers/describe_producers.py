"""DescribeProducers v0. The producer state of a partition, idempotent and transactional."""

from collections import Counter
from typing import Any

from suwi.handlers.authorization import check_topic
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import Sliced, SlicedItems, SlicedResponse, counting, sliced_handler
from suwi.log.producer_state import Producer
from suwi.model.errors import InvalidRequest
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation


@sliced_handler
def describe_producers(replicas: ReplicaManager, request: Request) -> Sliced:
    times: Counter[tuple[str, int]] = Counter()
    asked = (
        (topic.name, index) for topic in request.message.topics for index in topic.partition_indexes
    )
    yield from counting(times, asked)
    response = SlicedResponse(request)
    producers = SlicedItems(request, ("topics", "partitions", "active_producers"))
    for topic in request.message.topics:
        if response.begin_topic(name=topic.name):
            yield
        for index in topic.partition_indexes:
            times_named = times[topic.name, index]
            partition, active = _describe(replicas, request, topic.name, index, times_named)
            for producer in active:
                producers.add(_described(producer))
                if response.count():
                    producers.encode()
                    yield
            if response.add({**partition, "active_producers": producers.take()}):
                yield
    return response.reply()


def _describe(
    replicas: ReplicaManager, request: Request, topic: str, index: int, times_named: int
) -> tuple[dict[str, Any], list[Producer]]:
    error, producers = error_fields(None), list[Producer]()
    try:
        check_topic(request, Operation.READ, topic)
        if times_named > 1:  # a few bytes each in the request, kilobytes in the response
            raise InvalidRequest(f"{topic}-{index} is named more than once")
        producers = replicas.leader_of(topic, index).log.producers.all()
    except Exception as problem:
        error = error_fields(problem)
    return {"partition_index": index, **error}, producers


def _described(producer: Producer) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.txn_first_offset,
    }
