"""Online migration: a classic group becomes a consumer group, and the other way round.

Both append tombstones for what the group was, and records for what it becomes. The type of a group
follows from its records alone, so that a replay gives the same.
`upgrade` returns the consumer group as it will be, because the heartbeat that causes it continues
with it. After `downgrade` the classic group must rebalance: `downgrade_timer` fires at once. Its
record names no leader, so that a coordinator that loads it knows that, too.
"""

from collections.abc import Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event, TimerKey
from suwi.coordinator.topics import Topics
from suwi.env.slices import Pace, Slices
from suwi.group.classic_group import (
    PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    JoinResponse,
    SyncResponse,
    join_timer,
    session_timer,
    sync_timer,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.consumer_classic_members import embedded_assignment
from suwi.group.consumer_group import (
    NOTHING_OWNED,
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroupMember,
    ConsumerGroups,
    CurrentAssignment,
    MemberState,
    append_assignment_epoch,
    append_current,
    append_epoch,
    append_group_tombstones,
    append_subscription,
    append_target,
    consumer_session_timer,
    partitions_of,
)
from suwi.group.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from suwi.model.ids import TopicId
from suwi.wire.consumer_protocol import decode_assignment, decode_subscription
from suwi.wire.errors import MalformedMessage


def downgrade_timer(group_id: str) -> TimerKey:
    """When it fires, the classic group of this name must begin a rebalance."""
    return ("consumer-downgrade", group_id)


# -- classic to consumer -------------------------------------------------------------------------


def upgrade(
    classic: ClassicGroup, config: ConsumerGroupConfig, event: Event
) -> Slices[ConsumerGroup | None]:
    """Returns the consumer group with the members of this one, None if that is not possible. The
    records of the conversion are added to the event."""
    pace = Pace()
    group_id = classic.group_id
    event.append(GroupMetadataKey(group_id), None)
    members: list[ConsumerGroupMember] = []
    if classic.members:
        if not config.upgrades or classic.protocol_type != PROTOCOL_TYPE:
            return None
        if len(classic.members) > config.size_max:
            return None
        claimed: set[tuple[TopicId, int]] = set()
        try:
            for member in classic.members.values():
                members.append(_to_consumer(classic, member, event.topics, claimed))
                if pace.is_over(1 + (member.counted.held + len(member.assignment)) // 8):
                    yield
        except (MalformedMessage, _HasUserData):
            return None
    yield from _append_group(event, group_id, classic.generation, members)
    _end_classic(classic, event)
    scratch = ConsumerGroups()
    for record in event.records:
        yield from scratch.replay(record) or ()
    return scratch.get(group_id) or ConsumerGroup(group_id)


class _HasUserData(Exception):
    """User data of a custom assignor would be lost."""


def _to_consumer(
    classic: ClassicGroup, member: ClassicMember, topics: Topics, claimed: set[tuple[TopicId, int]]
) -> ConsumerGroupMember:
    # A member that has just joined may not support the protocol of the others.
    metadata = member.metadata_for(classic.protocol or "") or member.protocols[0].metadata
    subscription = decode_subscription(metadata)
    owned: dict[TopicId, dict[int, int]] = {}
    assignment = decode_assignment(member.assignment)
    if assignment.user_data:
        raise _HasUserData
    partitions = assignment.partitions
    if not member.assignment and classic.state is not ClassicState.STABLE:
        # An interrupted rebalance has dropped the assignment, but a cooperative member still reads
        # these.
        partitions = subscription.owned
    for name, partition in partitions:
        topic = topics.by_name(name)
        # G17: a custom assignor may have given a partition to several members.
        if topic is not None and (topic.topic_id, partition) not in claimed:
            claimed.add((topic.topic_id, partition))
            owned.setdefault(topic.topic_id, {})[partition] = classic.generation
    value = ConsumerGroupMemberMetadataValue(
        member.instance_id,
        subscription.rack,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
    )
    epoch = classic.generation
    current = CurrentAssignment(epoch, epoch, MemberState.STABLE, owned, NOTHING_OWNED)
    return ConsumerGroupMember(member.member_id, value, current)


def _append_group(
    event: Event, group_id: str, epoch: int, members: Sequence[ConsumerGroupMember]
) -> Slices[None]:
    if not members:
        return
    for member in members:
        assert member.subscription is not None
        append_subscription(event, group_id, member.member_id, member.subscription)
        classic = member.subscription.classic
        assert classic is not None
        key = consumer_session_timer(group_id, member.member_id)
        event.arm(key, event.now_ms + classic.session_timeout_ms)
    append_epoch(event, group_id, epoch, 0)
    for member in members:
        target = yield from partitions_of(member.current.assigned)
        yield from append_target(event, group_id, member.member_id, target)
    append_assignment_epoch(event, group_id, epoch, 0)
    for member in members:
        yield from append_current(event, group_id, member.member_id, member.current)


def _end_classic(classic: ClassicGroup, event: Event) -> None:
    """Members that wait are told to join again, and then find a consumer group."""
    again = ErrorCode.rebalance_in_progress
    for member in classic.members.values():
        if member.awaiting_join is not None:
            event.reply_to(member.awaiting_join, JoinResponse(again, member.member_id))
        if member.awaiting_sync is not None:
            event.reply_to(member.awaiting_sync, SyncResponse(again))
        event.cancel(session_timer(classic.group_id, member.member_id))
    for member_id in classic.pending_members:
        event.cancel(session_timer(classic.group_id, member_id))
    event.cancel(join_timer(classic.group_id))
    event.cancel(sync_timer(classic.group_id))


# -- consumer to classic -------------------------------------------------------------------------


def can_downgrade(members: Sequence[ConsumerGroupMember], config: ConsumerGroupConfig) -> bool:
    """Whether the members that would be left can be a classic group: all must use its protocol."""
    if not config.downgrades or not 0 < len(members) <= config.classic_size_max:
        return False
    if not all(member.uses_classic_protocol for member in members):
        return False
    names = (
        {protocol.name for protocol in member.subscription.classic.protocols}
        for member in members
        if member.subscription is not None and member.subscription.classic is not None
    )
    return bool(set.intersection(*names))


def downgrade(group: ConsumerGroup, members: Sequence[ConsumerGroupMember], event: Event) -> None:
    """`members` are those that are left of the group; all use the classic protocol."""
    classic = ClassicGroup(group.group_id, generation=group.epoch - 1)
    for member in members:
        classic.add(_to_classic(member))
        event.arm(
            session_timer(group.group_id, member.member_id),
            event.now_ms + classic.members[member.member_id].session_timeout_ms,
        )
    classic.begin_generation()
    classic.state_since_ms = event.now_ms
    assignments = {
        member.member_id: embedded_assignment(member, event.topics) for member in members
    }
    append_group_tombstones(event, group)
    value = replace(classic.value(assignments), leader=None)
    event.append(GroupMetadataKey(group.group_id), value)
    event.arm(downgrade_timer(group.group_id), event.now_ms)


def _to_classic(member: ConsumerGroupMember) -> ClassicMember:
    value = member.subscription
    assert value is not None
    assert value.classic is not None
    return ClassicMember(
        member.member_id,
        value.instance_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.classic.session_timeout_ms,
        PROTOCOL_TYPE,
        value.classic.protocols,
    )
