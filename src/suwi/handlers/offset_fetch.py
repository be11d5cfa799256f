"""OffsetFetch v1-v10. v2: all topics. v7: stable offsets only. v8: many groups. v10: topic ids.

Answers what is committed: offsets whose records are not yet committed do not show. Before v8 an
error of the coordinator is also that of each partition asked for, unlike Apache Kafka (ADR 18).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.consumer_validation import check_fetch
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_records import OffsetCommitValue
from suwi.handlers.coordinator_requests import coordinator_error
from suwi.handlers.errors import reply
from suwi.metadata.image import ClusterImage
from suwi.model.ids import NO_EPOCH, NO_OFFSET
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

_STABLE_FROM: Final = 7
_GROUPS_FROM: Final = 8
_MEMBER_FROM: Final = 9
_TOPIC_ID_FROM: Final = 10
_FOR_EACH: Final = {ErrorCode.coordinator_not_available: ErrorCode.not_coordinator}
"""aiokafka retries a partition with NOT_COORDINATOR, and fails with COORDINATOR_NOT_AVAILABLE."""


class _Group(NamedTuple):
    error: ErrorCode
    topics: Sequence[dict[str, Any]] = ()


class OffsetFetch:
    def __init__(self, groups: CoordinatorRuntime, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    def __call__(self, request: Request) -> Reply:
        asked = request.message
        if request.version < _GROUPS_FROM:
            error, topics = self._fetch(request, asked.group_id, asked.topics)
            if error is not ErrorCode.none:
                of_each = _FOR_EACH.get(error, error)
                topics = [
                    _topic(topic, request, [_refused(p, of_each) for p in topic.partition_indexes])
                    for topic in asked.topics or ()
                ]
            return reply(request, {"throttle_time": 0, "topics": topics, "error_code": error})
        groups = []
        for group in asked.groups:
            member = (None, -1)
            if request.version >= _MEMBER_FROM:
                member = group.member_id, group.member_epoch
            error, topics = self._fetch(request, group.group_id, group.topics, *member)
            groups.append({"group_id": group.group_id, "topics": topics, "error_code": error})
        return reply(request, {"throttle_time": 0, "groups": groups})

    def _fetch(
        self,
        request: Request,
        group_id: str,
        topics: Iterable[Any] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> _Group:
        try:
            shard: GroupCoordinatorShard = self._groups.shard_to_read(group_id).machine
        except Exception as error:
            return _Group(coordinator_error(error))
        group = shard.group(group_id)
        if isinstance(group, ConsumerGroup):
            error_code = check_fetch(group, member_id, member_epoch)
            if error_code is not ErrorCode.none:
                return _Group(error_code)
        if topics is None:
            return _Group(ErrorCode.none, self._all(shard, group_id, request))
        return _Group(
            ErrorCode.none, [self._of_topic(shard, group_id, topic, request) for topic in topics]
        )

    def _of_topic(
        self, shard: GroupCoordinatorShard, group_id: str, topic: Any, request: Request
    ) -> dict[str, Any]:
        name = _name_of(topic, request, self._replicas.image)
        if name is None:
            unknown = [_refused(p, ErrorCode.unknown_topic_id) for p in topic.partition_indexes]
            return _topic(topic, request, unknown)
        partitions = [
            self._partition(shard, group_id, name, index, request)
            for index in topic.partition_indexes
        ]
        return _topic(topic, request, partitions)

    def _partition(
        self, shard: GroupCoordinatorShard, group_id: str, name: str, index: int, request: Request
    ) -> dict[str, Any]:
        offsets = shard.offsets.of(group_id)
        if offsets is None:
            return _found(index, None)
        if _wants_stable(request) and offsets.is_unstable((name, index)):
            return _refused(index, ErrorCode.unstable_offset_commit)
        value = offsets.get((name, index))
        topic = self._replicas.image.topics.get(name)
        if value is not None and topic is not None and not value.is_of(topic.id):
            value = None  # G23: of a topic that had this name before.
        return _found(index, value)

    def _all(
        self, shard: GroupCoordinatorShard, group_id: str, request: Request
    ) -> list[dict[str, Any]]:
        offsets = shard.offsets.of(group_id)
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for name, index in sorted(offsets.partitions()) if offsets is not None else ():
            found = self._partition(shard, group_id, name, index, request)
            if found["committed_offset"] != NO_OFFSET or found["error_code"] is not ErrorCode.none:
                by_topic.setdefault(name, []).append(found)
        image = self._replicas.image
        topics: list[dict[str, Any]] = []
        for name, partitions in by_topic.items():
            if request.version < _TOPIC_ID_FROM:
                topics.append({"name": name, "partitions": partitions})
            elif name in image.topics:
                topics.append({"topic_id": image.topics[name].id, "partitions": partitions})
        return topics


def _wants_stable(request: Request) -> bool:
    return request.version >= _STABLE_FROM and bool(request.message.require_stable)


def _name_of(topic: Any, request: Request, image: ClusterImage) -> str | None:
    if request.version < _TOPIC_ID_FROM:
        name: str = topic.name
        return name
    found = image.topics_by_id.get(topic.topic_id)
    return found.name if found is not None else None


def _topic(topic: Any, request: Request, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    by_id = request.version >= _TOPIC_ID_FROM
    name = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
    return {**name, "partitions": partitions}


def _found(index: int, value: OffsetCommitValue | None) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": value.offset if value is not None else NO_OFFSET,
        "committed_leader_epoch": value.leader_epoch if value is not None else NO_EPOCH,
        "metadata": value.metadata if value is not None else "",
        "error_code": ErrorCode.none,
    }


def _refused(index: int, error: ErrorCode) -> dict[str, Any]:
    return {**_found(index, None), "error_code": error}
