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


class Asked(NamedTuple):
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
            return encode_errors(request, topics, errors)

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            offsets = offsets_to_commit(
                checked,
                now_ms,
                _expire_ms(request, now_ms),
                has_leader_epochs=version >= _LEADER_EPOCH_FROM,
            )
            shard.offset_requests.commit(who, offsets, token, now_ms, decision)

        return ask_shard(self._groups, asked.group_id, decide, encode, refuse)

    def _check(self, request: Request, topic: Any, partition: Any, image: ClusterImage) -> Asked:
        if request.version >= _TOPIC_ID_FROM:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                return Asked(None, partition, ErrorCode.unknown_topic_id)
        else:
            found = image.topics.get(topic.name)
        return check_partition(found, partition, self._metadata_bytes_max)


def check_partition(topic: Topic | None, partition: Any, metadata_bytes_max: int) -> Asked:
    """One partition of OffsetCommit or TxnOffsetCommit."""
    if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
        return Asked(topic, partition, ErrorCode.unknown_topic_or_partition)
    metadata = partition.committed_metadata or ""
    # As Kafka, whatever the name of the key: units of UTF-16, not bytes.
    if len(metadata.encode("utf-16-le")) > 2 * metadata_bytes_max:
        return Asked(topic, partition, ErrorCode.offset_metadata_too_large)
    return Asked(topic, partition, None)


def offsets_to_commit(
    checked: Iterable[Asked],
    now_ms: int,
    expire_ms: int = NO_TIMESTAMP,
    *,
    has_leader_epochs: bool,
) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            OffsetCommitValue(
                partition.committed_offset,
                partition.committed_leader_epoch if has_leader_epochs else NO_EPOCH,
                partition.committed_metadata or "",
                now_ms,
                expire_ms,
                topic.id,
            ),
        )
        for topic, partition, _ in checked
        if topic is not None
    ]


def _expire_ms(request: Request, now_ms: int) -> int:
    if request.version <= _RETENTION_UP_TO and request.message.retention_time >= _NO_TIME:
        return now_ms + int(request.message.retention_time // _MILLISECOND)
    return NO_TIMESTAMP


def encode_errors(
    request: Request, topics: list[tuple[Any, list[Asked]]], errors: Iterable[ErrorCode]
) -> Reply:
    """The response; `errors` are those of the partitions that were not refused for themselves."""
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
