"""OffsetCommit v2-v10. Up to v4: retention. v6: leader epoch. v7: static members. v10: ids."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Slices, Token
from suwi.coordinator.requests import Decide, ask, coordinator_error
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_manager import OffsetToCommit
from suwi.group.offset_records import OffsetCommitValue
from suwi.group.offset_requests import Committer
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.slices import SLICE_PARTITIONS, SlicedResponse, sliced
from suwi.metadata.image import Topic
from suwi.model.ids import NO_TIMESTAMP, NO_TOPIC_ID
from suwi.net.answers import Answer, Exclusive, Reply
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
_TOPICS_AT_ONCE: Final = 2_000


class CheckedTopic(NamedTuple):
    """One topic of the request; an error for each partition that is refused for itself alone."""

    key: str | UUID
    topic: Topic | None
    if_unknown: ErrorCode
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
            request.message or decode_offset_commit_request(version, request.body)
        )
        who = Committer(group_id, member_id, instance_id, generation, version)
        items = len(asked)
        if items <= SLICE_PARTITIONS:
            items += sum(len(partitions) for *_, partitions in asked)
        if items > SLICE_PARTITIONS:
            return Exclusive(self._commit_many(request, who, retention_ms, asked))
        topics = [CheckedTopic(*self._find(topic), topic[2], []) for topic in asked]
        for _ in checking(topics, self._metadata_bytes_max):
            pass

        def refuse(error: ErrorCode) -> Reply:
            return encode([error] * sum(topic.errors.count(_NO_ERROR) for topic in topics))

        def encode(errors: Iterable[ErrorCode]) -> Reply:
            throttle_ms = request.throttle_ms if version >= _THROTTLE_FROM else None
            flexible = version >= _FLEXIBLE_FROM
            of_topics = errors_of(topics, errors)
            return Reply([encode_offset_commit_response(of_topics, throttle_ms, flexible=flexible)])

        return ask_shard(
            self._groups, group_id, deciding(who, topics, retention_ms), encode, refuse
        )

    async def _commit_many(
        self, request: Request, who: Committer, retention_ms: int, asked: list[CommittedTopic]
    ) -> Reply:
        topics = [
            CheckedTopic(*self._find(topic), topic[2], []) async for topic in sliced(request, asked)
        ]
        for _ in checking(topics, self._metadata_bytes_max):
            await request.next_slice()
        to_commit = await topics_to_commit(request, topics)
        errors: Iterable[ErrorCode]
        try:
            errors = await ask(self._groups, who.group_id, deciding(who, to_commit, retention_ms))
        except Exception as error:
            errors = repeat(coordinator_error(error))
        return await reply_in_slices(request, topics, errors)

    def _find(self, topic: CommittedTopic) -> tuple[str | UUID, Topic | None, ErrorCode]:
        """Its key in the response, and the error of its partitions if it is unknown."""
        name, topic_id, _ = topic
        image = self._replicas.image
        if topic_id is None:
            assert name is not None
            return name, image.topics.get(name), ErrorCode.unknown_topic_or_partition
        return topic_id, image.topics_by_id.get(topic_id), ErrorCode.unknown_topic_id


async def topics_to_commit(request: Request, topics: Iterable[CheckedTopic]) -> list[CheckedTopic]:
    """Those with a partition that is not refused for itself."""
    return [
        topic
        async for topic in sliced(request, topics, _TOPICS_AT_ONCE)
        if _NO_ERROR in topic.errors
    ]


def checking(topics: Iterable[CheckedTopic], metadata_bytes_max: int) -> Iterator[None]:
    """Find the errors of partitions that are refused for themselves, in slices."""
    checked = 0
    for _, topic, if_unknown, partitions, errors in topics:
        checked += 1
        if checked % SLICE_PARTITIONS == 0:
            yield
        known = 0 if topic is None else len(topic.partitions)
        for index, _, _, metadata in partitions:
            error = _NO_ERROR
            if topic is None:
                error = if_unknown
            elif not 0 <= index < known:
                error = ErrorCode.unknown_topic_or_partition
            # As Kafka, whatever the name of the key: units of UTF-16, not bytes. A character has
            # one or two.
            elif (
                metadata
                and 2 * len(metadata) > metadata_bytes_max
                and len(metadata.encode("utf-16-le")) > 2 * metadata_bytes_max
            ):
                error = ErrorCode.offset_metadata_too_large
            errors.append(error)
            checked += 1
            if checked % SLICE_PARTITIONS == 0:
                yield


def deciding(who: Committer, topics: Iterable[CheckedTopic], retention_ms: int = -1) -> Decide:
    """A commit of the partitions that were not refused for themselves."""

    def decide(
        shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
    ) -> Slices:
        expire_ms = NO_TIMESTAMP
        if retention_ms >= 0:
            expire_ms = min(now_ms + retention_ms, _TIMESTAMP_MAX)
        offsets = offsets_to_commit(topics, now_ms, expire_ms)
        return shard.offset_requests.commit(who, offsets, token, now_ms, decision)

    return decide


def offsets_to_commit(
    topics: Iterable[CheckedTopic], now_ms: int, expire_ms: int
) -> Iterator[OffsetToCommit]:
    """The record of an offset with an expiry of its own has no place for the topic's id. It is left
    out here as well: a coordinator must not know more than its successor will."""
    has_id = expire_ms == NO_TIMESTAMP
    for _, topic, _, partitions, errors in topics:
        if topic is None:
            continue
        topic_id = topic.id if has_id else NO_TOPIC_ID
        for (index, offset, leader_epoch, metadata), error in zip(partitions, errors, strict=True):
            if error is _NO_ERROR:
                value = OffsetCommitValue(
                    offset, leader_epoch, metadata or "", now_ms, expire_ms, topic_id
                )
                yield OffsetToCommit(topic.name, index, value)


async def reply_in_slices(
    request: Request, topics: Iterable[CheckedTopic], errors: Iterable[ErrorCode]
) -> Reply:
    """`errors` are those of the partitions that were not refused before."""
    following = iter(errors)
    response = SlicedResponse(request)
    for key, _, _, partitions, refused in topics:
        field = "name" if isinstance(key, str) else "topic_id"
        if response.begin_topic(**{field: key}):
            await request.next_slice()
        for partition, error in zip(partitions, refused, strict=True):
            code = error or next(following)
            if response.add({"partition_index": partition[0], "error_code": code}):
                await request.next_slice()
    return response.reply()


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
        for key, _, _, partitions, refused in topics
    ]
