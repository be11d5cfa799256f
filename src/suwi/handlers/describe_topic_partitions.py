"""DescribeTopicPartitions v0. Topics and partitions, with paging (KIP-966)."""

from collections.abc import Generator, Iterator
from heapq import merge
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.authorization import authorized_operations, check_topic
from suwi.handlers.errors import reply
from suwi.handlers.metadata import find_topic, partition_fields
from suwi.handlers.slices import Sliced, SlicedResponse, reply_in_slices
from suwi.metadata.image import ClusterImage, Topic
from suwi.model.errors import BrokerError, InvalidRequest, error_of
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType

_SORTED_AT_ONCE = 2000
_PARTITIONS_MAX = 2000  # max.request.partition.size.limit


def describe_topic_partitions(replicas: ReplicaManager, request: Request) -> Answer:
    cursor = request.message.cursor
    if cursor is not None and cursor.partition_index < 0:
        refused = {"error_code": InvalidRequest.code, "name": None, "topic_id": None}
        return reply(request, {"topics": [{**refused, "partitions": []}], "next_cursor": None})
    return reply_in_slices(request, _answer(replicas, request))


def _answer(replicas: ReplicaManager, request: Request) -> Sliced:
    asked, image, cursor = request.message, replicas.image, request.message.cursor
    names = [topic.name for topic in asked.topics] or list(image.topics)
    left = max(1, min(asked.response_partition_limit, _PARTITIONS_MAX))
    response = SlicedResponse(request)
    next_cursor = None
    for name in (yield from _sorting(names)):
        begin = 0
        if cursor is not None and name <= cursor.topic_name:
            if name < cursor.topic_name:
                if response.count():
                    yield
                continue
            begin = cursor.partition_index
        is_visible = request.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if not is_visible and not asked.topics:
            if response.count():
                yield
            continue
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": begin}
            break
        topic, fields = _find(request, name, image)
        if response.begin_topic(name=name, **fields):
            yield
        states = () if topic is None else topic.partitions[begin : begin + left]
        for index, state in enumerate(states, begin):
            described = partition_fields(index, state, image)
            if response.add(
                {**described, "eligible_leader_replicas": state.elr, "last_known_elr": ()}
            ):
                yield
        left -= len(states)
        if topic is not None and begin + len(states) < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": begin + len(states)}
            break
    return response.reply(next_cursor=next_cursor)


def _sorting(names: list[str]) -> Generator[None, None, Iterator[str]]:
    """Sorts in slices; the sorted parts are merged as the names are taken."""
    parts = []
    for first in range(0, len(names), _SORTED_AT_ONCE):
        if first:
            yield
        parts.append(sorted(names[first : first + _SORTED_AT_ONCE]))
    return merge(*parts)


def _find(request: Request, name: str, image: ClusterImage) -> tuple[Topic | None, dict[str, Any]]:
    """A topic, and the fields of its answer."""
    try:
        check_topic(request, Operation.DESCRIBE, name)
        topic = find_topic(name, image)
    except BrokerError as error:
        return None, {"error_code": error_of(error)[0], "topic_id": None}
    return topic, {
        "error_code": ErrorCode.none,
        "topic_id": topic.id,
        "is_internal": name in INTERNAL_TOPICS,
        "topic_authorized_operations": authorized_operations(request, ResourceType.TOPIC, name),
    }
