"""OffsetCommit v2-v10. Up to v4: retention. v6: leader epoch. v7: static members. v10: ids."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_manager import OffsetToCommit
from suwi.group.offset_records import OffsetCommitValue
from suwi.group.offset_requests import Committer
from suwi.handlers.coordinator_requests import ask_shard
from suwi.metadata.image import ClusterImage, Topic
from suwi.model.ids import NO_TIMESTAMP, NO_TOPIC_ID
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.wire.offset_commit import (
    CommittedPartition,
    CommittedTopic,
    TopicErrors,
    decode_offset_commit_request,
    encode_offset_commit_response,
)

_THROTTLE_FROM: Final = 3
_FLEXIBLE_FROM: Final = 8
_TIMESTAMP_MAX: Final = 2**63 - 1
_NO_ERROR: Final = ErrorCode.none


class CheckedTopic(NamedTuple):
    """One topic of the request; an error for each partition that is refused for itself alone."""

    key: str | UUID
    topic: Topic | None
    partitions: Sequence[CommittedPartition]
    errors: list[ErrorCode]


class OffsetCommit:
    def __init__(
        self, groups: CoordinatorRuntime, replicas: ReplicaManager, metadata_bytes_max: int
    ) -> None:
        self._groups = groups
        self._replicas = replicas
        self._metadata_bytes_max = metadata_bytes_max

    def __call__(self, request: Request) -> Answer:
        version = request.version
        group_id, generation, member_id, instance_id, retention_ms, asked = (
            decode_offset_commit_request(version, request.body)
        )
        image = self._replicas.image
        topics = [self._check(topic, image) for topic in asked]
        who = Committer(group_id, member_id, instance_id, generation, version)

        def refuse(error: ErrorCode) -> Reply:
            return encode([error] * sum(topic.errors.count(_NO_ERROR) for topic in topics))

        def encode(errors: Iterable[ErrorCode]) -> Reply:
            throttle_ms = request.throttle_ms if version >= _THROTTLE_FROM else None
            flexible = version >= _FLEXIBLE_FROM
            of_topics = errors_of(topics, errors)
            return Reply([encode_offset_commit_response(of_topics, throttle_ms, flexible=flexible)])

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            expire_ms = NO_TIMESTAMP
            if retention_ms >= 0:
                expire_ms = min(now_ms + retention_ms, _TIMESTAMP_MAX)
            offsets = offsets_to_commit(topics, now_ms, expire_ms)
            shard.offset_requests.commit(who, offsets, token, now_ms, decision)

        return ask_shard(self._groups, group_id, decide, encode, refuse)

    def _check(self, topic: CommittedTopic, image: ClusterImage) -> CheckedTopic:
        name, topic_id, partitions = topic
        if topic_id is None:
            assert name is not None
            return check_topic(name, image.topics.get(name), partitions, self._metadata_bytes_max)
        found = image.topics_by_id.get(topic_id)
        if found is None:
            errors = [ErrorCode.unknown_topic_id] * len(partitions)
            return CheckedTopic(topic_id, None, partitions, errors)
        return check_topic(topic_id, found, partitions, self._metadata_bytes_max)


def check_topic(
    key: str | UUID,
    topic: Topic | None,
    partitions: Sequence[CommittedPartition],
    metadata_bytes_max: int,
) -> CheckedTopic:
    """One topic of OffsetCommit or TxnOffsetCommit."""
    known = 0 if topic is None else len(topic.partitions)
    errors = []
    for index, _, _, metadata in partitions:
        error = _NO_ERROR
        if not 0 <= index < known:
            error = ErrorCode.unknown_topic_or_partition
        # As Kafka, whatever the name of the key: units of UTF-16, not bytes. A character has one
        # or two.
        elif (
            metadata
            and 2 * len(metadata) > metadata_bytes_max
            and len(metadata.encode("utf-16-le")) > 2 * metadata_bytes_max
        ):
            error = ErrorCode.offset_metadata_too_large
        errors.append(error)
    return CheckedTopic(key, topic, partitions, errors)


def offsets_to_commit(
    topics: Iterable[CheckedTopic], now_ms: int, expire_ms: int = NO_TIMESTAMP
) -> list[OffsetToCommit]:
    """Those of the partitions that were not refused for themselves.

    The record of an offset with an expiry of its own has no place for the topic's id. It is left
    out here as well: a coordinator must not know more than its successor will."""
    has_id = expire_ms == NO_TIMESTAMP
    return [
        OffsetToCommit(
            topic.name,
            index,
            OffsetCommitValue(
                offset,
                leader_epoch,
                metadata or "",
                now_ms,
                expire_ms,
                topic.id if has_id else NO_TOPIC_ID,
            ),
        )
        for _, topic, partitions, errors in topics
        if topic is not None
        for (index, offset, leader_epoch, metadata), error in zip(partitions, errors, strict=True)
        if error is _NO_ERROR
    ]


def errors_of(topics: Iterable[CheckedTopic], errors: Iterable[ErrorCode]) -> list[TopicErrors]:
    """For the response; `errors` are those of the partitions that were not refused before."""
    following = iter(errors)
    return [
        (
            key,
            [
                (partition[0], error or next(following))
                for partition, error in zip(partitions, refused, strict=True)
            ],
        )
        for key, _, partitions, refused in topics
    ]
