"""OffsetFetch v1-v10. v2: all topics. v7: stable offsets only. v8: many groups. v10: topic ids.

Answers what is committed: offsets whose records are not yet committed do not show. Before v8 an
error of the coordinator is also that of each partition asked for, unlike Apache Kafka (ADR 18).
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.env.slices import Slices
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.consumer_validation import check_fetch
from suwi.group.group_coordinator_shard import GroupCoordinatorShard, GroupRuntime
from suwi.group.offset_records import OffsetCommitValue
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import (
    SLICE_PARTITIONS,
    Sliced,
    SlicedItems,
    SlicedResponse,
    reply_in_slices,
)
from suwi.metadata.image import ClusterImage
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_EPOCH, NO_OFFSET
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType

_STABLE_FROM: Final = 7
_GROUPS_FROM: Final = 8
_MEMBER_FROM: Final = 9
_TOPIC_ID_FROM: Final = 10
_SORTED_OF_AN_ITEM: Final = 16
"""The number of partitions that are sorted in the time of one item."""
_SEEN: Final = Operation.DESCRIBE, ResourceType.TOPIC
_NO_ERROR: Final = ErrorCode.none
_FOR_EACH: Final = {ErrorCode.coordinator_not_available: ErrorCode.not_coordinator}
"""aiokafka retries a partition with NOT_COORDINATOR, and fails with COORDINATOR_NOT_AVAILABLE."""


class OffsetFetch:
    def __init__(self, groups: GroupRuntime, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        if request.version < _GROUPS_FROM:
            return reply_in_slices(request, self._one_group(request))
        return reply_in_slices(request, self._several_groups(request))

    def _one_group(self, request: Request) -> Sliced:
        asked = request.message
        response = SlicedResponse(request)
        error = yield from self._fetch(request, asked.group_id, asked.topics, response)
        if error is not ErrorCode.none:
            of_each = _FOR_EACH.get(error, error)
            response = SlicedResponse(request)
            for topic in asked.topics or ():
                if response.begin_topic(name=topic.name):
                    yield
                for index in topic.partition_indexes:
                    if response.add(_refused(index, of_each)):
                        yield
        return response.reply(error_code=error)

    def _several_groups(self, request: Request) -> Sliced:
        groups = SlicedItems(request, ("groups",))
        response = SlicedResponse(request, ("groups",))
        # Each group once: a few bytes of a request would otherwise cost kilobytes of the response.
        asked: dict[str, Any] = {}
        for number, group in enumerate(request.message.groups, 1):
            asked[group.group_id] = group
            if number % SLICE_PARTITIONS == 0:
                yield
        for group in asked.values():
            member = (None, -1)
            if request.version >= _MEMBER_FROM:
                member = group.member_id, group.member_epoch
            fetched = self._fetch(request, group.group_id, group.topics, response, *member)
            error: ErrorCode | None = None
            while error is None:
                try:
                    next(fetched)
                except StopIteration as done:
                    error = done.value
                else:
                    groups.encode()
                    yield
            topics = response.topics()
            topics = topics if error is ErrorCode.none else []
            groups.add({"group_id": group.group_id, "topics": topics, "error_code": error})
        return groups.reply()

    def _fetch(
        self,
        request: Request,
        group_id: str,
        topics: Iterable[Any] | None,
        response: SlicedResponse,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Slices[ErrorCode]:
        """Returns the error of the group. Each offset was the committed one at some time during the
        request."""
        for _ in (None, *hashing(group_id)):
            if response.count():
                yield
        if request.refuses(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            return ErrorCode.group_authorization_failed
        try:
            shard = yield from self._groups.shard_to_read(group_id)
        except Exception as error:
            return coordinator_error(error)
        machine = shard.machine
        group = machine.group(group_id)
        if isinstance(group, ConsumerGroup):
            error_code = check_fetch(group, member_id, member_epoch)
            if error_code is not ErrorCode.none:
                return error_code
        is_stable = request.version >= _STABLE_FROM and bool(request.message.require_stable)
        by_id = request.version >= _TOPIC_ID_FROM
        image = self._replicas.image
        found = _Fetch(request, image, machine, group_id, response, by_id, is_stable)
        for _ in found.all() if topics is None else found.of_topics(topics):
            yield
            try:
                yield from shard.until_readable()
            except BrokerError as error:
                return coordinator_error(error)
            if shard.machine is not machine:
                return ErrorCode.not_coordinator
        return ErrorCode.none


class _Fetch(NamedTuple):
    """The offsets of one group. The methods yield when a slice is full."""

    request: Request
    image: ClusterImage
    shard: GroupCoordinatorShard
    group_id: str
    response: SlicedResponse
    by_id: bool
    wants_stable: bool

    def of_topics(self, topics: Iterable[Any]) -> Iterator[None]:
        response = self.response
        for topic in topics:
            known = self.image.topics_by_id.get(topic.topic_id) if self.by_id else None
            name = known and known.name if self.by_id else topic.name
            is_visible = name is None or not self.request.refuses(*_SEEN, name)
            key = {"topic_id": topic.topic_id} if self.by_id else {"name": topic.name}
            if response.begin_topic(**key):
                yield
            for index in topic.partition_indexes:
                if name is None:
                    found = _refused(index, ErrorCode.unknown_topic_id)
                elif not is_visible:
                    found = _refused(index, ErrorCode.topic_authorization_failed)
                else:
                    found = self._partition(name, index)
                if response.add(found):
                    yield

    def all(self) -> Iterator[None]:
        """Those that have an offset."""
        offsets, response = self.shard.offsets.of(self.group_id), self.response
        by_topic: dict[str, list[int]] = {}
        known = offsets.known_partitions() if offsets is not None else ()
        for number, (name, index) in enumerate(known, 1):
            by_topic.setdefault(name, []).append(index)
            if number % _SORTED_OF_AN_ITEM == 0 and response.count():
                yield
        for name, indexes in by_topic.items():
            topic = self.image.topics.get(name)
            if (self.by_id and topic is None) or not self.request.may(*_SEEN, name):
                continue
            has_begun = False
            for index in sorted(indexes):
                found = self._partition(name, index)
                if found["committed_offset"] == NO_OFFSET and found["error_code"] is _NO_ERROR:
                    if response.count():
                        yield
                    continue
                if not has_begun:
                    has_begun = True
                    key = {"topic_id": topic.id} if self.by_id and topic else {"name": name}
                    if response.begin_topic(**key):
                        yield
                if response.add(found):
                    yield

    def _partition(self, name: str, index: int) -> dict[str, Any]:
        offsets = self.shard.offsets.of(self.group_id)
        if offsets is None:
            return _found(index, None)
        if self.wants_stable and offsets.is_unstable((name, index)):
            return _refused(index, ErrorCode.unstable_offset_commit)
        value = offsets.get((name, index))
        topic = self.image.topics.get(name)
        if value is not None and topic is not None and not value.is_of(topic.id):
            value = None  # G23: it was committed for an earlier topic of this name.
        return _found(index, value)


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
