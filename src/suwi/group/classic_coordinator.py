"""Decisions about classic groups: who joins, when a generation is complete, who has been silent.

Each method adds its decisions to an `Event`. Only a whole generation is persisted, when its
assignment arrives, or when the last member is gone. `ClassicJoin` has JoinGroup,
`ClassicRebalances` what follows if members come or go, `ClassicCoordinator` the other requests.
Hazards G1–G7, G15, G16, G24.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.env.slices import Pace, Slices
from suwi.group.classic_group import (
    NO_SIZE,
    PROTOCOL_TYPE,
    PROTOCOLS_USUAL_MAX,
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    Committer,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
    beyond_record,
    is_revoking,
    join_timer,
    read_topics,
    reset_session,
    session_timer,
    size_of,
    sync_timer,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.history import Cause, Rebalance, Trigger


class ClassicRebalances:
    """A rebalance goes Stable → PreparingRebalance (all members join again) → CompletingRebalance
    (their assignment is awaited) → Stable. Enters at `rebalance_or_complete`. Hazards G3, G24."""

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
    """The response to a member of this generation. The leader's response lists all members."""
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


@dataclass(eq=False)
class ClassicJoin:
    """JoinGroup: new members, those that join again, static ones that return. Hazards G4–G6."""

    _config: ClassicGroupConfig
    _new_id: Callable[[], str]
    _rebalances: ClassicRebalances
    _held_beyond_records: Callable[[], int]

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
        return Trigger.MEMBER_REJOINED  # No matter: the rebalance keeps the cause it began with.
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


_STEPS_TO_LEAVE: Final = 8


class ClassicCoordinator:
    def __init__(
        self,
        config: ClassicGroupConfig,
        new_id: Callable[[], str],
        held_beyond_records: Callable[[], int] = lambda: 0,
    ) -> None:
        """`new_id` makes the random part of a member id. `held_beyond_records`: how many bytes the
        members of all groups hold that no record accounts for."""
        self.rebalances = ClassicRebalances(config.initial_rebalance_delay_ms)
        self.join = ClassicJoin(config, new_id, self.rebalances, held_beyond_records).join

    # -- SyncGroup -------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncRequest, event: Event) -> None:
        error = self._sync_refusal(group, request)
        if error is not None:
            event.reply(SyncResponse(error))
            return
        member = group.members[request.member_id]
        reset_session(group, member, event)
        group.pending_sync.pop(member.member_id, None)
        if group.state is ClassicState.STABLE:
            if not group.pending_sync:
                event.cancel(sync_timer(group.group_id))
            event.reply(_assigned(group, member))
            return
        if member.awaiting_sync is not None:
            earlier, member.awaiting_sync = member.awaiting_sync, None
            event.reply_to(earlier, SyncResponse(ErrorCode.unknown_member_id))
        member.awaiting_sync = event.call
        if group.is_leader(member.member_id):
            self._complete_sync(group, request.assignments, event)

    def _sync_refusal(self, group: ClassicGroup, request: SyncRequest) -> ErrorCode | None:
        if group.state is ClassicState.DEAD:
            return ErrorCode.coordinator_not_available
        error = check_member(group, request.member_id, request.instance_id)
        if error is not None:
            return error
        if request.generation != group.generation:
            return ErrorCode.illegal_generation
        for asked, known in (
            (request.protocol_type, group.protocol_type),
            (request.protocol, group.protocol),
        ):
            if asked is not None and asked != known:
                return ErrorCode.inconsistent_group_protocol
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.unknown_member_id if group.state is ClassicState.EMPTY else None

    def _complete_sync(
        self, group: ClassicGroup, assignments: dict[str, bytes], event: Event
    ) -> None:
        """The leader has assigned: the generation is complete, and is persisted."""
        key = GroupMetadataKey(group.group_id)
        value = replace(group.value(assignments), state_timestamp_ms=event.now_ms)
        if not event.has_room_for(key, value):
            self._refuse_assignment(group, event)
            return
        move(group, ClassicState.STABLE, event.now_ms)
        event.append(key, value)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.awaiting_sync is not None:
                reset_session(group, member, event)
            answer_sync(member, _assigned(group, member), event)
        if not group.pending_sync:
            event.cancel(sync_timer(group.group_id))
        self.rebalances.end_rebalance(group, event)

    def _refuse_assignment(self, group: ClassicGroup, event: Event) -> None:
        """G16: the record of the assignment is too large for the log."""
        for member in group.members.values():
            answer_sync(member, SyncResponse(ErrorCode.unknown_server_error), event)
        leader = group.members.get(group.leader_id or "")
        cause = cause_of(Trigger.ASSIGNMENT_TOO_LARGE, leader)
        self.rebalances.prepare_rebalance(group, cause, event)

    def sync_timed_out(self, group: ClassicGroup, event: Event) -> None:
        """G3: members that have not asked for their assignment are expelled, also if the group is
        stable by now."""
        if not group.is_in(ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            return
        silent = list(group.pending_sync)
        if not silent:
            return
        first = group.members.get(silent[0])
        for member_id in silent:
            self.rebalances.expel(group, member_id, event)
        cause = cause_of(Trigger.SYNC_TIMEOUT, first)
        self.rebalances.prepare_rebalance(group, cause, event)

    # -- Heartbeat, LeaveGroup, silence ----------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, who: Committer, event: Event) -> ErrorCode:
        if group.state is ClassicState.DEAD:
            return ErrorCode.coordinator_not_available
        error = check_member(group, who.member_id, who.instance_id)
        if error is not None:
            return error
        if who.generation != group.generation:
            return ErrorCode.illegal_generation
        if group.state is ClassicState.EMPTY:
            return ErrorCode.unknown_member_id
        reset_session(group, group.members[who.member_id], event)
        preparing = group.state is ClassicState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if preparing else ErrorCode.none

    def leave(
        self, group: ClassicGroup, leaving: Sequence[LeavingMember], event: Event
    ) -> Slices[list[ErrorCode]]:
        """Returns one error for each member. There is one rebalance for all of them."""
        errors, pace = [], Pace()
        cause: Cause | None = None
        for each in leaving:
            error, removed = self._leave_one(group, each, event)
            errors.append(error)
            if removed is not None and cause is None:
                cause = cause_of(Trigger.LEAVE, removed, each.reason)
            if pace.is_over(_STEPS_TO_LEAVE):
                yield
        if cause is not None:
            self.rebalances.rebalance_or_complete(group, cause, event)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self.rebalances.complete_if_all_joined(group, event)
        return errors

    def _leave_one(
        self, group: ClassicGroup, leaving: LeavingMember, event: Event
    ) -> tuple[ErrorCode, ClassicMember | None]:
        if group.state is ClassicState.DEAD:
            return ErrorCode.coordinator_not_available, None
        member_id, instance_id = leaving.member_id, leaving.instance_id
        if instance_id is not None:
            held_by = group.static.get(instance_id)
            if held_by is None:
                return ErrorCode.unknown_member_id, None
            if member_id not in (UNKNOWN_MEMBER, held_by):
                return ErrorCode.fenced_instance_id, None
            member_id = held_by
        elif member_id in group.pending_members:
            group.take_back(member_id)
            event.cancel(session_timer(group.group_id, member_id))
            return ErrorCode.none, None
        if member_id not in group.members:
            return ErrorCode.unknown_member_id, None
        return ErrorCode.none, self.rebalances.expel(group, member_id, event)

    def session_timed_out(self, group: ClassicGroup, member_id: str, event: Event) -> None:
        if member_id in group.pending_members:
            group.take_back(member_id)
            if group.state is ClassicState.PREPARING_REBALANCE:
                self.rebalances.complete_if_all_joined(group, event)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.awaiting_join or member.awaiting_sync):
            # It waits for a reply, and sends no heartbeats until then.
            reset_session(group, member, event)
            return
        self.rebalances.expel(group, member_id, event)
        cause = cause_of(Trigger.SESSION_TIMEOUT, member)
        self.rebalances.rebalance_or_complete(group, cause, event)

    def downgraded(self, group: ClassicGroup, cause: Cause, event: Event) -> None:
        """The last member of the consumer protocol has left: the others must join again."""
        if group.is_in(ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self.rebalances.prepare_rebalance(group, cause, event)

    # -- load and unload -------------------------------------------------------------------------

    def loaded(self, group: ClassicGroup, event: Event) -> None:
        """The group was loaded from the log: sessions begin anew. A group without a leader was
        downgraded; it must rebalance, because the partitions of the members that left have no
        owner."""
        for member in group.members.values():
            reset_session(group, member, event)
        if group.members and group.leader_id is None:
            cause = Cause(Trigger.DOWNGRADE)
            self.rebalances.prepare_rebalance(group, cause, event)


def _assigned(group: ClassicGroup, member: ClassicMember) -> SyncResponse:
    return SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)
