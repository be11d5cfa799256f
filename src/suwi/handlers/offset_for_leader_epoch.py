"""OffsetForLeaderEpoch v2-v4. The end offset of a leader epoch, to detect truncation.

v3: replica id, which tells followers (authenticated brokers only) from consumers. Below v3 only
consumers send it.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.slices import Sliced, SlicedResponse, sliced_handler
from suwi.model.errors import error_of
from suwi.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, LeaderEpoch
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType


@sliced_handler
def offset_for_leader_epoch(replicas: ReplicaManager, request: Request) -> Sliced:
    is_follower = getattr(request.message, "replica_id", NO_NODE) >= 0
    is_refused = is_follower and not request.client.is_peer
    if is_refused:
        request.refused_as_broker()
    sees_all = request.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    response = SlicedResponse(request)
    for topic in request.message.topics:
        if response.begin_topic(topic=topic.topic):
            yield
        is_visible = sees_all or not request.refuses(
            Operation.DESCRIBE, ResourceType.TOPIC, topic.topic
        )
        for asked in topic.partitions:
            if is_refused:
                answer = _answer(asked, ErrorCode.cluster_authorization_failed)
            elif not is_visible:
                answer = _answer(asked, ErrorCode.topic_authorization_failed)
            else:
                answer = _find(replicas, topic.topic, asked, is_follower=is_follower)
            if response.add(answer):
                yield
    return response.reply()


def _find(replicas: ReplicaManager, topic: str, asked: Any, *, is_follower: bool) -> dict[str, Any]:
    error, epoch, end = ErrorCode.none, NO_EPOCH, NO_OFFSET
    try:
        partition = replicas.leader_of(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        # Uncommitted records are not visible to a consumer.
        log_end = partition.log.end_offset if is_follower else partition.high_watermark
        epoch, end = partition.log.epochs.end_of(LeaderEpoch(asked.leader_epoch), log_end)
    except Exception as problem:
        error, _ = error_of(problem)
    return _answer(asked, error, epoch, end)


def _answer(
    asked: Any, error: ErrorCode, epoch: int = NO_EPOCH, end: int = NO_OFFSET
) -> dict[str, Any]:
    return {
        "error_code": error,
        "partition": asked.partition,
        "leader_epoch": epoch,
        "end_offset": end,
    }
