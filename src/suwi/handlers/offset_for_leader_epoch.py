"""OffsetForLeaderEpoch v2-v4. The end offset of a leader epoch, to detect truncation.

v3: replica id, which tells followers (authenticated brokers only) from consumers. Below v3 only
consumers send it.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.slices import Sliced, SlicedResponse, in_slices
from suwi.model.errors import error_of
from suwi.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, LeaderEpoch
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


class OffsetForLeaderEpoch:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._answer(request))

    def _answer(self, request: Request) -> Sliced:
        is_follower = getattr(request.message, "replica_id", NO_NODE) >= 0
        is_refused = is_follower and not request.client.is_peer
        response = SlicedResponse(request)
        for topic in request.message.topics:
            if response.begin_topic(topic=topic.topic):
                yield
            for asked in topic.partitions:
                if is_refused:
                    answer = _answer(asked, ErrorCode.cluster_authorization_failed)
                else:
                    answer = self._find(topic.topic, asked, is_follower=is_follower)
                if response.add(answer):
                    yield
        return response.reply()

    def _find(self, topic: str, asked: Any, *, is_follower: bool) -> dict[str, Any]:
        error, epoch, end = ErrorCode.none, NO_EPOCH, NO_OFFSET
        try:
            partition = self._replicas.leader_of(topic, asked.partition)
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
