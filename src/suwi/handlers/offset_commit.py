"""OffsetCommit v2-v10. Up to v4: retention. v6: leader epoch. v7: static members. v10: ids."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.coordinator.runtime import coordinator_error
from suwi.env.slices import Slices, run_to_end
from suwi.group.classic_group import Committer
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard, GroupRuntime
from suwi.group.offset_requests import CheckedTopic, CommitRequest
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, SlicedResponse
from suwi.metadata.image import Topic
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType
from suwi.wire.offset_commit import (
    CommittedPartition,
    CommittedTopic,
    decode_offset_commit_request,
    encode_offset_commit_response,
)

_THROTTLE_FROM: Final = 3
_FLEXIBLE_FROM: Final = 8
_NO_ERROR: Final = ErrorCode.none

FoundTopic: TypeAlias = tuple[str | UUID, Topic | None, ErrorCode, Iterable[CommittedPartition]]
"""A topic of a request: its name or id, what the image has, the error if that is nothing, and what
is to be committed."""


class OffsetCommit(CoordinatorHandler[GroupCoordinatorShard, Any]):
    def __init__(
        self, groups: GroupRuntime, replicas: ReplicaManager, metadata_bytes_max: int
    ) -> None:
        super().__init__(groups)
        self._replicas = replicas
        self._metadata_bytes_max = metadata_bytes_max

    def call_of(self, request: Request) -> GroupCall | Slices[GroupCall] | ErrorCode:
        version = request.version
        group_id, generation, member_id, instance_id, retention_ms, asked = (
            request.message or decode_offset_commit_request(version, request.body)
        )
        if request.refuses(Operation.READ, ResourceType.GROUP, group_id):
            return ErrorCode.group_authorization_failed
        who = Committer(group_id, member_id, instance_id, generation, version)
        calling = self._commit(request, who, asked, retention_ms)
        return calling if _is_large(asked) else run_to_end(calling)

    def error_response(self, request: Request, error: ErrorCode) -> ErrorCode:
        return error

    def encode(self, request: Request, response: ErrorCode) -> Sliced:
        """A request that is refused as a whole."""
        asked = request.message or decode_offset_commit_request(request.version, request.body)
        refused = (
            CheckedTopic(topic_id or name or "", None, partitions, [response] * len(partitions))
            for name, topic_id, partitions in asked[-1]
        )
        return encoding(request, refused, ())

    def _commit(
        self, request: Request, who: Committer, asked: list[CommittedTopic], retention_ms: int
    ) -> Slices[GroupCall]:
        found = (self._find(request, topic) for topic in asked)
        checked, to_commit = yield from checking(found, self._metadata_bytes_max)
        return commit(CommitRequest(who, to_commit, retention_ms, checked))

    def _find(self, request: Request, topic: CommittedTopic) -> FoundTopic:
        name, topic_id, partitions = topic
        image = self._replicas.image
        if topic_id is None:
            assert name is not None
            found = image.topics.get(name)
            error = ErrorCode.unknown_topic_or_partition
        else:
            found = image.topics_by_id.get(topic_id)
            name, error = found.name if found is not None else None, ErrorCode.unknown_topic_id
        if name is not None and request.refuses(Operation.READ, ResourceType.TOPIC, name):
            found, error = None, ErrorCode.topic_authorization_failed
        return topic_id or topic[0] or "", found, error, partitions

    def reply_to(self, request: Request, call: GroupCall) -> Reply | Sliced:
        topics: list[CheckedTopic] = call.asked.answered
        errors = repeat(coordinator_error(call.error)) if call.error else call.response
        if _is_large(topics):
            return encoding(request, topics, errors)
        following = iter(errors)
        of_topics = [
            (
                topic.key,
                [
                    (partition[0], error or next(following))
                    for partition, error in zip(topic.partitions, topic.errors, strict=True)
                ],
            )
            for topic in topics
        ]
        throttle_ms = 0 if request.version >= _THROTTLE_FROM else None
        flexible = request.version >= _FLEXIBLE_FROM
        return Reply([encode_offset_commit_response(of_topics, throttle_ms, flexible=flexible)])


def _is_large(topics: Sequence[CommittedTopic] | Sequence[CheckedTopic]) -> bool:
    """Whether the topics and partitions of a request take more than one slice."""
    items = len(topics)
    for topic in topics:
        if items > SLICE_PARTITIONS:
            break
        items += len(topic[2])
    return items > SLICE_PARTITIONS


def checking(
    topics: Iterable[FoundTopic], metadata_bytes_max: int
) -> Slices[tuple[list[CheckedTopic], list[CheckedTopic]]]:
    """Find the partitions that are refused for themselves alone. Returns all topics, and those with
    a partition that is not refused."""
    all_topics: list[CheckedTopic] = []
    to_commit: list[CheckedTopic] = []
    checked = 0
    for key, topic, if_unknown, asked in topics:
        partitions: list[CommittedPartition] = []
        errors: list[ErrorCode] = []
        known = 0 if topic is None else len(topic.partitions)
        for partition in asked:
            index, _, _, metadata = partition
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
            partitions.append(partition)
            errors.append(error)
            checked += 1
            if checked % SLICE_PARTITIONS == 0:
                yield
        all_topics.append(CheckedTopic(key, topic, partitions, errors))
        if _NO_ERROR in errors:
            to_commit.append(all_topics[-1])
        checked += 1
        if checked % SLICE_PARTITIONS == 0:
            yield
    return all_topics, to_commit


def commit(request: CommitRequest) -> GroupCall:
    return Call(GroupCoordinatorShard.commit_offsets, request, request.who.group_id)


def encoding(
    request: Request, topics: Iterable[CheckedTopic], errors: Iterable[ErrorCode]
) -> Sliced:
    """The reply; `errors` are those of the partitions that were not refused for themselves."""
    following = iter(errors)
    response = SlicedResponse(request)
    for key, _, partitions, refused in topics:
        field = "name" if isinstance(key, str) else "topic_id"
        if response.begin_topic(**{field: key}):
            yield
        for partition, error in zip(partitions, refused, strict=True):
            code = error or next(following)
            if response.add({"partition_index": partition[0], "error_code": code}):
                yield
    return response.reply()
