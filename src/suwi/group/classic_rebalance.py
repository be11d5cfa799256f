"""Rebalances of classic groups: all members join again, then their assignment is awaited.

A rebalance goes Stable → PreparingRebalance (all join) → CompletingRebalance (the assignment is
awaited) → Stable. Enters at `rebalance_or_complete`.
Hazards G3, G24.
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.group.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    JoinedMember,
    JoinResponse,
    SyncResponse,
    join_timer,
    reset_session,
    session_timer,
    sync_timer,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.history import Cause, Rebalance, Trigger


class ClassicRebalances:
    def __init__(self, initial_delay_ms: int) -> None:
        self._initial_delay_ms = initial_delay_ms
        self._rebalances: dict[str, Rebalance] = {}
        """By group the rebalance that is under way."""
        self._initial_until_ms: dict[str, int] = {}
        """By group the latest end of the delay of its first rebalance."""

    def rebalance_or_complete(self, group: ClassicGroup, cause: Cause, event: Event) -> None:
        if group.is_in(ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY):
            self.prepare_rebalance(group, cause, event)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, event)

    def prepare_rebalance(self, group: ClassicGroup, cause: Cause, event: Event) -> None:
        """All members have to join again."""
        is_first = group.state is ClassicState.EMPTY
        event.cancel(sync_timer(group.group_id))
        group.pending_sync.clear()
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                answer_sync(member, SyncResponse(ErrorCode.rebalance_in_progress), event)
        rebalance = Rebalance(group.group_id, cause, event.now_ms, group.generation)
        self._rebalances.setdefault(group.group_id, rebalance)
        move(group, ClassicState.PREPARING_REBALANCE, event.now_ms)
        delay_ms = self._initial_delay_ms
        if is_first and delay_ms > 0:
            latest_ms = event.now_ms + max(group.rebalance_timeout_ms, delay_ms)
            self._initial_until_ms[group.group_id] = latest_ms
            group.new_member_added = False
            event.arm(join_timer(group.group_id), event.now_ms + delay_ms)
            return
        event.arm(join_timer(group.group_id), event.now_ms + group.rebalance_timeout_ms)
        self.complete_if_all_joined(group, event)

    def complete_if_all_joined(self, group: ClassicGroup, event: Event) -> None:
        if group.group_id not in self._initial_until_ms and group.has_all_joined:
            self._complete_join(group, event)

    def join_timed_out(self, group: ClassicGroup, event: Event) -> None:
        """The time to join is over, or the delay of a first rebalance."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        latest_ms = self._initial_until_ms.get(group.group_id)
        if latest_ms is not None and group.new_member_added and event.now_ms < latest_ms:
            # More members are joining: wait for them, too.
            group.new_member_added = False
            delay_ms = min(self._initial_delay_ms, latest_ms - event.now_ms)
            event.arm(join_timer(group.group_id), event.now_ms + delay_ms)
            return
        self._initial_until_ms.pop(group.group_id, None)
        self._complete_join(group, event)

    def _complete_join(self, group: ClassicGroup, event: Event) -> None:
        self._initial_until_ms.pop(group.group_id, None)
        for member in list(group.members.values()):
            # Static members keep their place until their session is over.
            if member.awaiting_join is None and member.instance_id is None:
                self.expel(group, member.member_id, event)
        if group.members and not group.elect_joined_leader():
            event.arm(join_timer(group.group_id), event.now_ms + group.rebalance_timeout_ms)
            return
        event.cancel(join_timer(group.group_id))
        group.begin_generation()
        if not group.members:
            move(group, ClassicState.EMPTY, event.now_ms)
            self.end_rebalance(group, event)
            event.append(GroupMetadataKey(group.group_id), group.value())
            return
        move(group, ClassicState.COMPLETING_REBALANCE, event.now_ms)
        # G3: members that do not ask for their assignment are expelled, too.
        event.arm(sync_timer(group.group_id), event.now_ms + group.rebalance_timeout_ms)
        # G6: after a fail-over the new ids must not be fenced by the persisted ones.
        key, replaced = GroupMetadataKey(group.group_id), group.value_with_replacements()
        if replaced is not None and event.has_room_for(key, replaced):
            event.append(key, replaced)
        for member in group.members.values():
            group.pending_sync[member.member_id] = None
            call = group.await_join(member, None)
            if call is not None:
                event.reply_to(call, joined(group, member))
            member.is_new = False
            reset_session(group, member, event)

    def under_way(self, group_id: str) -> Rebalance | None:
        return self._rebalances.get(group_id)

    def end_rebalance(self, group: ClassicGroup, event: Event) -> None:
        rebalance = self._rebalances.pop(group.group_id, None)
        if rebalance is not None:
            rebalance.to_generation = group.generation
            rebalance.ended_ms = event.now_ms
            rebalance.members = len(group.members)
            rebalance.stood_still_ms = _stood_still_ms(group, event.now_ms)
            event.notices.append(rebalance)

    def expel(self, group: ClassicGroup, member_id: str, event: Event) -> ClassicMember | None:
        """G24: when a member is removed, its timers end and its waiting calls are answered."""
        event.cancel(session_timer(group.group_id, member_id))
        member = group.remove(member_id)
        if member is None:
            return None
        if member.awaiting_join is not None:
            gone = JoinResponse(ErrorCode.unknown_member_id, member_id)
            event.reply_to(member.awaiting_join, gone)
            member.awaiting_join = None
        answer_sync(member, SyncResponse(ErrorCode.unknown_member_id), event)
        return member

    def forget(self, group_id: str) -> None:
        self._rebalances.pop(group_id, None)
        self._initial_until_ms.pop(group_id, None)


def stand_still(member: ClassicMember, now_ms: int) -> None:
    """It has joined, and reads nothing until it gets an assignment."""
    if member.stands_still_since_ms is None:
        member.stands_still_since_ms = now_ms


def _stood_still_ms(group: ClassicGroup, now_ms: int) -> dict[str, int]:
    """By member how long it had no assignment. The members read again from now on."""
    stood_still_ms = {}
    for member in group.members.values():
        since_ms, member.stands_still_since_ms = member.stands_still_since_ms, None
        if since_ms is not None:
            stood_still_ms[member.member_id] = now_ms - since_ms
    return stood_still_ms


def move(group: ClassicGroup, state: ClassicState, now_ms: int) -> None:
    group.state = state
    group.state_since_ms = now_ms


def joined(
    group: ClassicGroup,
    member: ClassicMember,
    *,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinResponse:
    """The response to a member of this generation. That to the leader also has the members."""
    leader = leader or group.leader_id or UNKNOWN_MEMBER
    members: Sequence[JoinedMember] = ()
    if leader == member.member_id:
        protocol = group.protocol or ""
        members = [
            JoinedMember(each.member_id, each.instance_id, each.metadata_for(protocol))
            for each in group.members.values()
        ]
    return JoinResponse(
        ErrorCode.none,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        leader,
        skip_assignment,
        members,
    )


def answer_sync(member: ClassicMember, response: SyncResponse, event: Event) -> None:
    if member.awaiting_sync is not None:
        event.reply_to(member.awaiting_sync, response)
        member.awaiting_sync = None


def cause_of(trigger: Trigger, member: ClassicMember | None, reason: str = "") -> Cause:
    if member is None:
        return Cause(trigger)
    return Cause(trigger, member.member_id, member.client_id, member.client_host, reason)
