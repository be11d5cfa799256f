"""OffsetCommit v2-v10. Up to v4: retention. v6: leader epoch. v7: static members. v10: ids."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_manager import OffsetToCommit
from suwi.group.offset_records import OffsetCommitValue
from suwi.group.offset_requests import Committer
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.metadata.image import ClusterImage, Topic
from suwi.model.ids import NO_EPOCH, NO_TIMESTAMP
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

_RETENTION_UP_TO: Final = 4
_LEADER_EPOCH_FROM: Final = 6
_INSTANCE_ID_FROM: Final = 7
_TOPIC_ID_FROM: Final = 10
_NO_TIME: Final = timedelta()
_MILLISECOND: Final = timedelta(milliseconds=1)


class _Asked(NamedTuple):
    """One partition of the request; `error` where it is refused for itself alone."""

    topic: Topic | None
    partition: Any
    error: ErrorCode | None


class OffsetCommit:
    def __init__(
        self, groups: CoordinatorRuntime, replicas: ReplicaManager, metadata_bytes_max: int
    ) -> None:
        self._groups = groups
        self._replicas = replicas
        self._metadata_bytes_max = metadata_bytes_max

    def __call__(self, request: Request) -> Answer:
        asked, version = request.message, request.version
        image = self._replicas.image
        topics = [
            (topic, [self._check(request, topic, p, image) for p in topic.partitions])
            for topic in asked.topics
        ]
        who = Committer(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id if version >= _INSTANCE_ID_FROM else None,
            asked.generation_id_or_member_epoch,
            version,
        )

        checked = [each for _, partitions in topics for each in partitions if each.error is None]

        def refuse(error: ErrorCode) -> Reply:
            return encode([error] * len(checked))

        def encode(errors: list[ErrorCode]) -> Reply:
            return _encode(request, topics, errors)

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            offsets = [
                OffsetToCommit(
                    each.topic.name, each.partition.partition_index, _value(request, each, now_ms)
                )
                for each in checked
                if each.topic is not None
            ]
            shard.offset_requests.commit(who, offsets, token, now_ms, decision)

        return ask_shard(self._groups, asked.group_id, decide, encode, refuse)

    def _check(self, request: Request, topic: Any, partition: Any, image: ClusterImage) -> _Asked:
        if request.version >= _TOPIC_ID_FROM:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                return _Asked(None, partition, ErrorCode.unknown_topic_id)
        else:
            found = image.topics.get(topic.name)
        if found is None or not 0 <= partition.partition_index < len(found.partitions):
            return _Asked(found, partition, ErrorCode.unknown_topic_or_partition)
        metadata = partition.committed_metadata or ""
        # As Kafka, whatever the name of the key: units of UTF-16, not bytes.
        if len(metadata.encode("utf-16-le")) > 2 * self._metadata_bytes_max:
            return _Asked(found, partition, ErrorCode.offset_metadata_too_large)
        return _Asked(found, partition, None)


def _value(request: Request, asked: _Asked, now_ms: int) -> OffsetCommitValue:
    partition, version = asked.partition, request.version
    expire_ms = NO_TIMESTAMP
    if version <= _RETENTION_UP_TO and request.message.retention_time >= _NO_TIME:
        expire_ms = now_ms + request.message.retention_time // _MILLISECOND
    assert asked.topic is not None
    return OffsetCommitValue(
        partition.committed_offset,
        partition.committed_leader_epoch if version >= _LEADER_EPOCH_FROM else NO_EPOCH,
        partition.committed_metadata or "",
        now_ms,
        expire_ms,
        asked.topic.id,
    )


def _encode(
    request: Request, topics: list[tuple[Any, list[_Asked]]], errors: Iterable[ErrorCode]
) -> Reply:
    """`errors` are those of the partitions that were not refused for themselves."""
    following = iter(errors)
    fields: list[Mapping[str, Any]] = []
    for topic, partitions in topics:
        of_partitions = [
            {
                "partition_index": each.partition.partition_index,
                "error_code": each.error or next(following),
            }
            for each in partitions
        ]
        by_id = request.version >= _TOPIC_ID_FROM
        name = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        fields.append({**name, "partitions": of_partitions})
    return reply(request, {"throttle_time": 0, "topics": fields})
