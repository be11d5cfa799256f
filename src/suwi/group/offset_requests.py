"""What is asked about the offsets of groups of either protocol: commits, deletions, expiry. Pure.

Hazards G1, G2, G12, G13, G20, G23.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import RECORDS_PER_SLICE, Event
from suwi.env.slices import Slices
from suwi.group.classic_coordinator import check_member
from suwi.group.classic_group import (
    NOT_FOUND_FROM,
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicState,
    Committer,
    reset_session,
    subscribed_topics,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.consumer_group import ConsumerGroup, append_group_tombstones
from suwi.group.consumer_validation import CommitFence, fence_commit
from suwi.group.groups import Group, Groups
from suwi.group.offset_manager import EXPIRED_PER_EVENT, EXPIRY_CHECKED_PER_EVENT, OffsetToCommit
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.group.offsets import Partition
from suwi.metadata.image import Topic
from suwi.model.ids import NO_TIMESTAMP, NO_TOPIC_ID
from suwi.wire.offset_commit import CommittedPartition

EXPIRY: Final = ("expiry",)
_TIMESTAMP_MAX: Final = 2**63 - 1


class OffsetsCommitted(NamedTuple):
    """A notice for metrics: how many offsets were committed."""

    offsets: int


class CheckedTopic(NamedTuple):
    """One topic of a commit. `errors` has one for each partition, `none` if it is not refused."""

    key: str | UUID
    """Its name or its id, as the request has it."""
    topic: Topic | None
    partitions: Sequence[CommittedPartition]
    errors: list[ErrorCode]


class CommitRequest(NamedTuple):
    """Commits the partitions of `topics` that have no error of their own."""

    who: Committer
    topics: Iterable[CheckedTopic]
    retention_ms: int = -1
    """-1: that of the broker."""
    answered: Iterable[CheckedTopic] = ()
    """All topics of the request, for its reply."""

    def offsets(self, now_ms: int) -> Iterator[OffsetToCommit]:
        """An offset with an expiry of its own is written in version 1, which has no field for the
        topic's id. So its value has no id either: memory is what a replay of the log gives."""
        expire_ms = NO_TIMESTAMP
        if self.retention_ms >= 0:
            expire_ms = min(now_ms + self.retention_ms, _TIMESTAMP_MAX)
        has_id = expire_ms == NO_TIMESTAMP
        for _, topic, partitions, errors in self.topics:
            if topic is None:
                continue
            topic_id = topic.id if has_id else NO_TOPIC_ID
            for (index, offset, leader_epoch, metadata), error in zip(
                partitions, errors, strict=True
            ):
                if error is ErrorCode.none:
                    value = OffsetCommitValue(
                        offset, leader_epoch, metadata or "", now_ms, expire_ms, topic_id
                    )
                    yield OffsetToCommit(topic.name, index, value)


class OffsetDeleteRequest(NamedTuple):
    group_id: str
    partitions: Iterable[Partition]


class OffsetRequests:
    def __init__(self, groups: Groups, retention_ms: int, expiry_interval_ms: int) -> None:
        self._groups = groups
        self._offsets = groups.offsets
        self._retention_ms = retention_ms
        self._expiry_interval_ms = expiry_interval_ms
        self._expiring: Iterator[str] | None = None
        """The groups that the current round of expiry has not checked yet."""

    # -- OffsetCommit, TxnOffsetCommit -----------------------------------------------------------

    def commit(
        self, who: Committer, offsets: Iterable[OffsetToCommit], event: Event
    ) -> Slices[None]:
        group = self._groups.with_members(who.group_id)
        if group is None and who.generation >= 0:
            # Only with a generation does it matter whether the group exists and is empty.
            group = self._groups.get(who.group_id)
        if isinstance(group, ConsumerGroup):
            fence = fence_commit(group, who)
        else:
            fence = CommitFence(_refusal(group, who) or ErrorCode.none)
        event.producer = who.producer
        if (
            isinstance(group, ClassicGroup)
            and fence.error is ErrorCode.none
            and who.producer is None
        ):
            member = group.members.get(who.member_id)
            if member is not None:
                reset_session(group, member, event)
        errors = []
        error = fence.error
        for number, each in enumerate(offsets, 1):
            if fence.member is not None:
                error = fence.of(each.value.topic_id, each.partition)
            if not error:
                event.append(OffsetCommitKey(who.group_id, each.topic, each.partition), each.value)
            errors.append(error)
            if number % RECORDS_PER_SLICE == 0:
                yield
        if event.records:
            event.notices_when_committed.append(OffsetsCommitted(len(event.records)))
        event.reply(errors)

    # -- OffsetDelete, DeleteGroups --------------------------------------------------------------

    def delete_offsets(self, request: OffsetDeleteRequest, event: Event) -> Slices[None]:
        group_id, partitions = request
        group = self._groups.get(group_id)
        if group is None:
            event.reply(ErrorCode.group_id_not_found)
            return
        if isinstance(group, ClassicGroup) and not (
            group.state is ClassicState.EMPTY or group.uses_consumer_protocol
        ):
            event.reply(ErrorCode.non_empty_group)
            return
        subscribed = _subscribed(group)
        errors = []
        event.is_atomic = False
        for number, partition in enumerate(partitions, 1):
            if number % RECORDS_PER_SLICE == 0:
                yield
            if subscribed is None or partition[0] in subscribed:
                errors.append(ErrorCode.group_subscribed_to_topic)
            else:
                self._offsets.delete(group_id, partition, event)
                errors.append(ErrorCode.none)
        event.reply(errors)

    def delete_group(self, group_id: str, event: Event) -> Slices[ErrorCode]:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if not group.is_empty:
            return ErrorCode.non_empty_group
        event.is_atomic = False
        yield from self._offsets.delete_all(group_id, event)
        _append_tombstones(group, event)
        return ErrorCode.none

    def topics_deleted(self, deleted: frozenset[str], event: Event) -> Slices[None]:
        """The offsets of a topic are deleted with it (hazard G23)."""
        event.is_atomic = False
        checked = 0
        for group_id in list(self._offsets.groups()):
            offsets = self._offsets.of(group_id)
            if offsets is None:
                continue
            for partition in offsets.latest_or_staged():
                if partition[0] in deleted:
                    self._offsets.delete(group_id, partition, event)
                checked += 1
                if checked % EXPIRY_CHECKED_PER_EVENT == 0:
                    yield

    # -- expiry ----------------------------------------------------------------------------------

    def arm_expiry(self, event: Event) -> None:
        event.arm(EXPIRY, event.now_ms + self._expiry_interval_ms)

    def expire(self, event: Event) -> Slices[None]:
        """Check some groups. The others follow in further events."""
        event.is_atomic = False
        if self._expiring is None:
            self._expiring = iter(self._groups.ids())
        checked = 0
        for group_id in self._expiring:
            group, offsets = self._groups.get(group_id), self._offsets.of(group_id)
            checked += 1 + (len(offsets) if offsets is not None else 0)
            if group is not None:
                yield from self._expire_group(group, event)
            if len(event.records) >= EXPIRED_PER_EVENT or checked >= EXPIRY_CHECKED_PER_EVENT:
                event.arm(EXPIRY, event.now_ms)
                return
        self.stop_expiry()
        self.arm_expiry(event)

    def stop_expiry(self) -> None:
        self._expiring = None

    def _expire_group(self, group: Group, event: Event) -> Slices[None]:
        subscribed = _subscribed(group)
        is_empty = group.is_empty
        is_settled = isinstance(group, ConsumerGroup) or group.state is ClassicState.STABLE

        def counts_from(topic: str, value: OffsetCommitValue) -> int | None:
            """Hazard G12."""
            if is_empty:
                # Old records of Kafka do not say since when a group has been empty.
                since_ms = -1
                if isinstance(group, ClassicGroup) and group.protocol_type is not None:
                    since_ms = group.state_since_ms
                return max(since_ms, value.commit_timestamp_ms)
            if not is_settled or subscribed is None or topic in subscribed:
                return None
            return value.commit_timestamp_ms

        all_gone = yield from self._offsets.expire(
            group.group_id, counts_from, self._retention_ms, event
        )
        is_awaited = isinstance(group, ClassicGroup) and group.pending_members
        if all_gone and is_empty and not is_awaited:
            _append_tombstones(group, event)


def _refusal(group: ClassicGroup | None, who: Committer) -> ErrorCode | None:
    """Hazards G1 and G2. Transactional commits need not name a member, and may come while the group
    completes a rebalance."""
    is_transactional = who.producer is not None
    if group is None:
        if who.generation < 0:
            return None
        if who.version >= NOT_FOUND_FROM and not is_transactional:
            return ErrorCode.group_id_not_found
        return ErrorCode.illegal_generation
    if group.state is ClassicState.DEAD:
        return ErrorCode.coordinator_not_available
    if who.generation < 0 and group.state is ClassicState.EMPTY:
        return None
    if who.generation >= 0 or who.member_id != UNKNOWN_MEMBER or who.instance_id is not None:
        error = check_member(group, who.member_id, who.instance_id)
        if error is not None:
            return error
        if who.generation != group.generation:
            return ErrorCode.illegal_generation
    elif not is_transactional:
        return ErrorCode.unknown_member_id
    if group.state is ClassicState.COMPLETING_REBALANCE and not is_transactional:
        return ErrorCode.rebalance_in_progress
    return None


def _subscribed(group: Group) -> frozenset[str] | None:
    if isinstance(group, ConsumerGroup):
        return frozenset(group.subscribed_topics())
    return subscribed_topics(group)


def _append_tombstones(group: Group, event: Event) -> None:
    if isinstance(group, ConsumerGroup):
        append_group_tombstones(event, group)
    else:
        event.append(GroupMetadataKey(group.group_id), None)
