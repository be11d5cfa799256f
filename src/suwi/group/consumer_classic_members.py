"""Members of a consumer group that still speak the classic protocol, during an online migration.

For them the coordinator is the leader: JoinGroup is answered at once, SyncGroup returns the current
assignment of the member, and Heartbeat tells it to join again whenever it must revoke or can get
something. Their generation is their member epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.coordinator.topics import Topics
from suwi.env.slices import Pace, Slices
from suwi.group.classic_group import (
    PROTOCOL_TYPE,
    UNKNOWN_MEMBER,
    Committer,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from suwi.group.consumer_draft import Draft
from suwi.group.consumer_group import (
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
    consumer_rebalance_timer,
    consumer_session_timer,
)
from suwi.group.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from suwi.group.consumer_updates import ConsumerUpdates
from suwi.group.consumer_validation import Refused, find_member, find_static, unknown_member
from suwi.model.ids import PartitionIndex, TopicId, TopicPartition
from suwi.wire.consumer_protocol import Subscription, decode_subscription, encode_assignment
from suwi.wire.errors import MalformedMessage


class Joining(NamedTuple):
    draft: Draft
    before: ConsumerGroupMember
    """The member without the changes of the request."""
    subscription: Subscription


@dataclass(eq=False)
class ClassicMembers:
    _config_of: Callable[[str], ConsumerGroupConfig]
    _new_id: Callable[[], str]
    _updates: ConsumerUpdates
    _told_to_join: dict[str, set[str]] = field(default_factory=dict)
    """By group the members whose time to join, or to sync, is running."""

    # -- JoinGroup -------------------------------------------------------------------------------

    def prepare(self, group: ConsumerGroup, request: JoinRequest, event: Event) -> "Joining | None":
        """Returns None if the request was refused, or must be sent again with an id."""
        try:
            subscription = self._check(group, request)
            member_id = request.member_id
            if member_id == UNKNOWN_MEMBER:
                member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
                if request.instance_id is None and request.must_know_its_id:
                    required = ErrorCode.member_id_required
                    event.reply(JoinResponse(required, member_id))
                    return None
            before, member = self._find(group, request, member_id)
            if member.current.state is MemberState.UNKNOWN:
                raise unknown_member(member_id, group.group_id)
        except Refused as refusal:
            event.reply(JoinResponse(refusal.error, request.member_id))
            return None
        value = _merged(member, request, subscription)
        draft = Draft.of(group, before, replace(member, subscription=value))
        return Joining(draft, member, subscription)

    def join(self, joining: "Joining", event: Event) -> Slices[None]:
        draft = joining.draft
        group_id = draft.group.group_id
        yield from self._updates.replace_static(draft, event)
        owned = _owned(joining.subscription, event.topics)
        yield from self._updates.update(draft, joining.before, owned, event)
        self._arm_session(group_id, draft.member, event)
        # From now on it has its rebalance timeout for SyncGroup (G3).
        self._arm_rebalance(group_id, draft.member, event)

    def _check(self, group: ConsumerGroup, request: JoinRequest) -> Subscription:
        config = self._config_of(group.group_id)
        shortest_ms, longest_ms = config.classic_session_timeout_ms_range
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            message = f"The session timeout must be {shortest_ms} to {longest_ms} ms."
            raise Refused(ErrorCode.invalid_session_timeout, message)
        is_known = request.member_id in group.members or (
            request.instance_id is not None and request.instance_id in group.static
        )
        if not is_known and len(group.members) >= config.size_max:
            raise Refused(ErrorCode.group_max_size_reached, "the group is full")
        names = [protocol.name for protocol in request.protocols]
        inconsistent = Refused(ErrorCode.inconsistent_group_protocol, f"protocols {names}")
        everybody = group.classic_members
        if request.protocol_type != PROTOCOL_TYPE or not any(
            group.classic_protocols[name] == everybody for name in names
        ):
            raise inconsistent
        try:
            return decode_subscription(request.protocols[0].metadata)
        except MalformedMessage as error:
            raise inconsistent from error

    def _find(
        self, group: ConsumerGroup, request: JoinRequest, member_id: str
    ) -> tuple[ConsumerGroupMember | None, ConsumerGroupMember]:
        if request.instance_id is None:
            known = group.members.get(member_id)
            return known, known or ConsumerGroupMember(member_id)
        if request.member_id != UNKNOWN_MEMBER:
            known = find_static(group, member_id, request.instance_id)
            return known, known
        holder = group.static_member(request.instance_id)
        if holder is None:
            return None, ConsumerGroupMember(member_id)
        # A classic static member replaces the current holder of its instance id.
        rejoined = replace(holder.current, epoch=0, previous_epoch=0)
        return holder, ConsumerGroupMember(member_id, holder.subscription, rejoined)

    # -- SyncGroup, Heartbeat --------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncRequest, event: Event) -> SyncResponse:
        try:
            member, classic = self._classic(group, request.member_id, request.instance_id)
        except Refused as refusal:
            return SyncResponse(refusal.error)
        if request.generation != member.epoch:
            return SyncResponse(ErrorCode.illegal_generation)
        name = classic.protocols[0].name
        for asked, known in ((request.protocol_type, PROTOCOL_TYPE), (request.protocol, name)):
            if asked is not None and asked != known:
                return SyncResponse(ErrorCode.inconsistent_group_protocol)
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if group.epoch > member.epoch and not is_revoking:
            self._tell_to_join(group.group_id, member, event)
            return SyncResponse(ErrorCode.rebalance_in_progress)
        self.forget(group.group_id, member.member_id)
        event.cancel(consumer_rebalance_timer(group.group_id, member.member_id))
        self._arm_session(group.group_id, member, event)
        assignment = embedded_assignment(member, event.topics)
        return SyncResponse(ErrorCode.none, PROTOCOL_TYPE, name, assignment)

    def heartbeat(self, group: ConsumerGroup, who: Committer, event: Event) -> ErrorCode:
        try:
            member, _ = self._classic(group, who.member_id, who.instance_id)
        except Refused as refusal:
            return refusal.error
        if who.generation != member.epoch:
            return ErrorCode.illegal_generation
        self._arm_session(group.group_id, member, event)
        if not _must_join(group, member):
            return ErrorCode.none
        self._tell_to_join(group.group_id, member, event)
        return ErrorCode.rebalance_in_progress

    def _classic(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
        member = find_member(group, member_id, instance_id)
        classic = member.subscription.classic if member.subscription is not None else None
        if classic is None or not classic.protocols:
            raise unknown_member(member_id, group.group_id)
        return member, classic

    def _tell_to_join(self, group_id: str, member: ConsumerGroupMember, event: Event) -> None:
        """Its rebalance timeout begins when it is told for the first time."""
        if member.member_id not in self._told_to_join.get(group_id, ()):
            self._arm_rebalance(group_id, member, event)

    def _arm_rebalance(self, group_id: str, member: ConsumerGroupMember, event: Event) -> None:
        self._told_to_join.setdefault(group_id, set()).add(member.member_id)
        key = consumer_rebalance_timer(group_id, member.member_id)
        event.arm(key, event.now_ms + max(member.rebalance_timeout_ms, 0))

    def _arm_session(self, group_id: str, member: ConsumerGroupMember, event: Event) -> None:
        assert member.subscription is not None
        assert member.subscription.classic is not None
        key = consumer_session_timer(group_id, member.member_id)
        event.arm(key, event.now_ms + member.subscription.classic.session_timeout_ms)

    # -- LeaveGroup ------------------------------------------------------------------------------

    def leaving(
        self, group: ConsumerGroup, leaving: Sequence[LeavingMember]
    ) -> Slices[list[ConsumerGroupMember | ErrorCode]]:
        """Returns for each the member that leaves, or the error."""
        pace = Pace()
        found: list[ConsumerGroupMember | ErrorCode] = []
        for each in leaving:
            member_id = each.member_id
            if each.instance_id is not None and member_id == UNKNOWN_MEMBER:
                # An administrator removes the member with this instance id.
                member_id = group.static.get(each.instance_id, UNKNOWN_MEMBER)
            try:
                found.append(self._classic(group, member_id, each.instance_id)[0])
            except Refused as refusal:
                found.append(refusal.error)
            if pace.is_over(4):
                yield
        return found

    def forget(self, group_id: str, member_id: str) -> None:
        told = self._told_to_join.get(group_id)
        if told is not None:
            told.discard(member_id)
            if not told:
                del self._told_to_join[group_id]

    def forget_group(self, group_id: str) -> None:
        self._told_to_join.pop(group_id, None)


def _must_join(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Whether it is behind, must revoke something, or could get what it waits for."""
    match member.current.state:
        case MemberState.UNREVOKED_PARTITIONS:
            return True
        case MemberState.UNRELEASED_PARTITIONS:
            return member.epoch < group.epoch or not _is_waiting(group, member)
    return member.epoch < group.epoch


def _is_waiting(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    return any(
        group.owner(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.targets.get(member.member_id, {}).items()
        for partition in partitions
    )


def embedded_assignment(member: ConsumerGroupMember, topics: Topics) -> bytes:
    """The member's assignment in the version of the protocol that it uses, without deleted
    topics."""
    assert member.subscription is not None
    assert member.subscription.classic is not None
    try:
        version = decode_subscription(member.subscription.classic.protocols[0].metadata).version
    except MalformedMessage:
        version = 0
    named = [
        TopicPartition(topic.name, PartitionIndex(partition))
        for topic_id, epochs in member.current.assigned.items()
        if (topic := topics.by_id(topic_id)) is not None
        for partition in epochs
    ]
    return encode_assignment(named, version)


def _owned(subscription: Subscription, topics: Topics) -> OwnedPartitions:
    """Nothing for an eager member: it gives up everything before it joins."""
    found: dict[TopicId, list[int]] = {}
    for owned in subscription.owned:
        topic = topics.by_name(owned.topic)
        if topic is not None:
            found.setdefault(topic.topic_id, []).append(owned.partition)
    return found


def _merged(
    member: ConsumerGroupMember, request: JoinRequest, subscription: Subscription
) -> ConsumerGroupMemberMetadataValue:
    known = member.subscription
    return ConsumerGroupMemberMetadataValue(
        request.instance_id,
        subscription.rack or (known.rack_id if known is not None else None),
        request.client_id,
        request.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
    )
