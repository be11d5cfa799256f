"""JoinGroup of classic groups: new members, members that join again, static members that return.

Hazards G4–G6.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.group.classic_group import (
    NO_SIZE,
    PROTOCOL_TYPE,
    PROTOCOLS_USUAL_MAX,
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    JoinRequest,
    JoinResponse,
    SyncResponse,
    beyond_record,
    is_revoking,
    read_topics,
    reset_session,
    session_timer,
    size_of,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.classic_rebalance import (
    ClassicRebalances,
    answer_sync,
    cause_of,
    joined,
    stand_still,
)
from suwi.group.history import Trigger

_NEW_MEMBER_JOIN_MS: Final = 300_000
"""A member that joins for the first time sends no heartbeats before it has a reply. It may be
silent this long, because the rebalance may take longer than its session."""

_HELD_BYTES_MAX: Final = 64 << 20
"""The most that the members of all groups of a broker may hold beyond their records."""


@dataclass(frozen=True, slots=True)
class ClassicGroupConfig:
    initial_rebalance_delay_ms: int
    session_timeout_ms_min: int
    session_timeout_ms_max: int
    size_max: int


class ClassicJoin:
    def __init__(
        self,
        config: ClassicGroupConfig,
        new_id: Callable[[], str],
        rebalances: ClassicRebalances,
        held_beyond_records: Callable[[], int],
    ) -> None:
        self._config = config
        self._new_id = new_id
        self._rebalances = rebalances
        self._held_beyond_records = held_beyond_records

    def join(self, group: ClassicGroup, request: JoinRequest, event: Event) -> None:
        error = self._refusal(group, request)
        if error is ErrorCode.group_max_size_reached:
            self._turn_away(group, request, event)
            return
        if error is not None:
            event.reply(JoinResponse(error, request.member_id))
            return
        error = self._too_large(group, request, event)
        if error is not None:
            event.reply(JoinResponse(error, request.member_id))
            return
        if request.member_id == UNKNOWN_MEMBER:
            self._join_new(group, request, event)
        elif request.member_id in group.pending_members:
            self._add(group, request, request.member_id, event)
        else:
            self._join_again(group, request, event)

    def _refusal(self, group: ClassicGroup, request: JoinRequest) -> ErrorCode | None:
        config = self._config
        session_ms = request.session_timeout_ms
        if not config.session_timeout_ms_min <= session_ms <= config.session_timeout_ms_max:
            return ErrorCode.invalid_session_timeout
        if group.state is ClassicState.DEAD:
            return ErrorCode.coordinator_not_available
        if not self._has_room(group, request.member_id):
            return ErrorCode.group_max_size_reached
        names = [protocol.name for protocol in request.protocols]
        if not group.supports(request.protocol_type, names):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id in group.pending_members:
            # Static members are not given an id first.
            is_static = request.instance_id is not None
            return ErrorCode.unknown_server_error if is_static else None
        if request.member_id != UNKNOWN_MEMBER:
            return check_member(group, request.member_id, request.instance_id)
        return None

    def _too_large(
        self, group: ClassicGroup, request: JoinRequest, event: Event
    ) -> ErrorCode | None:
        """G16: refuses a member for which the group's record has no room. Changes nothing."""
        known = group.members.get(group.static.get(request.instance_id or "", request.member_id))
        before = known.counted if known is not None else NO_SIZE
        after = size_of(
            request.protocols, request.member_id, request.client_id, request.instance_id
        )
        held = after.held - before.held
        recorded_bytes = group.recorded_bytes + after.recorded - before.recorded
        if (
            recorded_bytes > event.batch_bytes_max
            or group.held_bytes + held > PROTOCOLS_USUAL_MAX * event.batch_bytes_max
        ):
            return ErrorCode.group_max_size_reached
        beyond = after.held
        if known is not None:
            beyond = beyond_record(after.held, known.in_record) - known.counted_beyond_record
        if beyond > 0 and self._held_beyond_records() + beyond > _HELD_BYTES_MAX:
            return ErrorCode.coordinator_load_in_progress  # The client retries.
        return None

    def _turn_away(self, group: ClassicGroup, request: JoinRequest, event: Event) -> None:
        """KAFKA-9885: a member that comes back too late to a full group is removed."""
        self._rebalances.expel(group, request.member_id, event)
        event.reply(JoinResponse(ErrorCode.group_max_size_reached, UNKNOWN_MEMBER))
        if group.state is ClassicState.PREPARING_REBALANCE:
            self._rebalances.complete_if_all_joined(group, event)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """G4: ids that were handed out count too."""
        member = group.members.get(member_id)
        pending = len(group.pending_members) - (member_id in group.pending_members)
        if group.state is ClassicState.PREPARING_REBALANCE:
            if member is not None and member.awaiting_join is not None:
                return True
            return group.joined + pending < self._config.size_max
        return member is not None or len(group.members) + pending < self._config.size_max

    def _join_new(self, group: ClassicGroup, request: JoinRequest, event: Event) -> None:
        instance_id = request.instance_id
        member_id = f"{instance_id or request.client_id}-{self._new_id()}"
        if instance_id is not None and instance_id in group.static:
            self._replace(group, request, member_id, event)
        elif instance_id is None and request.must_know_its_id:
            group.hand_out(member_id)
            deadline_ms = event.now_ms + request.session_timeout_ms
            event.arm(session_timer(group.group_id, member_id), deadline_ms)
            event.reply(JoinResponse(ErrorCode.member_id_required, member_id))
        else:
            self._add(group, request, member_id, event)

    def _add(self, group: ClassicGroup, request: JoinRequest, member_id: str, event: Event) -> None:
        if group.state is ClassicState.PREPARING_REBALANCE and group.generation == 0:
            group.new_member_added = True
        member = ClassicMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            request.protocols,
            is_new=True,
            awaiting_join=event.call,
            stands_still_since_ms=event.now_ms,
        )
        group.add(member)
        event.arm(session_timer(group.group_id, member_id), event.now_ms + _NEW_MEMBER_JOIN_MS)
        self._rebalances.rebalance_or_complete(
            group, cause_of(Trigger.JOIN, member, request.reason), event
        )

    def _join_again(self, group: ClassicGroup, request: JoinRequest, event: Event) -> None:
        member = group.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        if group.state is ClassicState.COMPLETING_REBALANCE and is_unchanged:
            # Its reply was lost, and is sent again.
            event.reply(joined(group, member))
            return
        if (
            group.state is ClassicState.STABLE
            and is_unchanged
            and not group.is_leader(member.member_id)
        ):
            event.reply(joined(group, member))
            return
        trigger = _rejoin_trigger(group, member, request)
        self._update(group, member, request, event)
        stand_still(member, event.now_ms)
        self._rebalances.rebalance_or_complete(
            group, cause_of(trigger, member, request.reason), event
        )

    def _update(
        self, group: ClassicGroup, member: ClassicMember, request: JoinRequest, event: Event
    ) -> None:
        member.client_id, member.client_host = request.client_id, request.client_host
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        earlier = group.await_join(member, event.call)
        if earlier is not None:
            # The request was sent again on another connection; nobody reads the reply to the first.
            event.reply_to(earlier, JoinResponse(ErrorCode.unknown_member_id, member.member_id))

    def _replace(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, event: Event
    ) -> None:
        """G5: a static member is back under a new id. The old id is fenced, whatever the state of
        the group."""
        assert request.instance_id is not None
        old_id = group.static[request.instance_id]
        old = group.members[old_id]
        was_leader, old_leader = group.is_leader(old_id), group.leader_id
        subscription = old.metadata_for(group.protocol or "")
        self._fence(group, old, event)
        event.cancel(session_timer(group.group_id, old_id))
        member = group.replace_static(request.instance_id, member_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        if self._moves_nothing(group, member, subscription, event):
            reset_session(group, member, event)
            # G6: the new id must be the valid one after a fail-over, too.
            event.append(GroupMetadataKey(group.group_id), group.value())
            if request.can_skip_assignment:
                event.reply(joined(group, member, skip_assignment=was_leader))
            else:
                # The old id is named as the leader, so that the member does not assign anything.
                leader = old_leader or UNKNOWN_MEMBER
                event.reply(joined(group, member, leader=leader))
            return
        event.arm(session_timer(group.group_id, member_id), event.now_ms + _NEW_MEMBER_JOIN_MS)
        group.await_join(member, event.call)
        stand_still(member, event.now_ms)
        cause = cause_of(Trigger.STATIC_MEMBER_REPLACED, member, request.reason)
        self._rebalances.rebalance_or_complete(group, cause, event)

    def _moves_nothing(
        self, group: ClassicGroup, member: ClassicMember, subscription: bytes, event: Event
    ) -> bool:
        """Whether a static member that is back can keep the assignment of the old one."""
        if group.state is not ClassicState.STABLE:
            return False
        protocol = group.select_protocol()
        if protocol != group.protocol:
            return False
        # KAFKA-12759: a changed subscription needs a rebalance. Only the topics count: other parts
        # of the metadata, for example the owned partitions, differ after each restart.
        old, new = subscription, member.metadata_for(protocol)
        if old != new and (read_topics(old) is None or read_topics(old) != read_topics(new)):
            return False
        # It had to give up partitions and to join again. Without a rebalance these would have no
        # owner.
        if group.protocol_type == PROTOCOL_TYPE and is_revoking(old, member.assignment):
            return False
        return event.has_room_for(GroupMetadataKey(group.group_id), group.value())

    def _fence(self, group: ClassicGroup, member: ClassicMember, event: Event) -> None:
        fenced = ErrorCode.fenced_instance_id
        waiting = group.await_join(member, None)
        if waiting is not None:
            event.reply_to(waiting, JoinResponse(fenced, member.member_id))
        answer_sync(member, SyncResponse(fenced), event)


def _rejoin_trigger(group: ClassicGroup, member: ClassicMember, request: JoinRequest) -> Trigger:
    """The metadata of cooperative members contains the partitions they own. If only these differ,
    the subscription is the same."""
    if group.state is ClassicState.PREPARING_REBALANCE:
        return Trigger.MEMBER_REJOINED  # Not used: the rebalance has its cause already.
    if request.protocol_type == PROTOCOL_TYPE and member.protocols != request.protocols:
        before = {protocol.name: read_topics(protocol.metadata) for protocol in member.protocols}
        now = {protocol.name: read_topics(protocol.metadata) for protocol in request.protocols}
        if before != now or None in now.values():
            return Trigger.SUBSCRIPTION_CHANGE
    elif member.protocols != request.protocols:
        return Trigger.SUBSCRIPTION_CHANGE
    is_leader = group.is_leader(member.member_id)
    return Trigger.LEADER_REJOINED if is_leader else Trigger.MEMBER_REJOINED


def check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Whether a request is from a member of the group, and not from one that was replaced."""
    if instance_id is not None:
        held_by = group.static.get(instance_id)
        if held_by is None:
            return ErrorCode.unknown_member_id
        if held_by != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in group.members else ErrorCode.unknown_member_id
