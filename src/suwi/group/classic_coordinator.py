"""Decisions about classic groups: who joins, when a generation is complete, who has been silent.

Each method takes one event and fills a `Decision`. A rebalance goes Stable → PreparingRebalance
(all join) → CompletingRebalance (the assignment is awaited) → Stable. Only a whole generation is
persisted, when its assignment arrives, or when the last member is gone.
Hazards G1–G7, G15, G16, G24.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, TimerKey, Token
from suwi.group.classic_group import ClassicGroup, ClassicMember, ClassicState
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.classic_messages import (
    UNKNOWN_MEMBER,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from suwi.group.history import Cause, Rebalance, Trigger

_EMPTY: Final = ClassicState.EMPTY
_PREPARING: Final = ClassicState.PREPARING_REBALANCE
_COMPLETING: Final = ClassicState.COMPLETING_REBALANCE
_STABLE: Final = ClassicState.STABLE
_DEAD: Final = ClassicState.DEAD

_NEW_MEMBER_JOIN_MS: Final = 300_000
"""Who joins for the first time sends no heartbeats before it is answered: it may be silent for so
long, should the rebalance take longer than its session."""


@dataclass(frozen=True, slots=True)
class ClassicGroupConfig:
    initial_rebalance_delay_ms: int
    session_timeout_ms_min: int
    session_timeout_ms_max: int
    size_max: int


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return ("session", group_id, member_id)


def join_timer(group_id: str) -> TimerKey:
    return ("join", group_id)


def sync_timer(group_id: str) -> TimerKey:
    return ("sync", group_id)


class ClassicCoordinator:
    def __init__(self, config: ClassicGroupConfig, new_id: Callable[[], str]) -> None:
        """`new_id` makes the random part of a member id."""
        self._config = config
        self._new_id = new_id
        self._rebalances: dict[str, Rebalance] = {}
        """Those that go on, by group."""
        self._initial_until_ms: dict[str, int] = {}
        """The latest end of the delay of a first rebalance."""

    # -- JoinGroup -------------------------------------------------------------------------------

    def join(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        error = self._refusal(group, request)
        if error is not None:
            group.pending_members.pop(request.member_id, None)
            decision.reply(token, JoinResponse(error, request.member_id))
            return
        if request.member_id == UNKNOWN_MEMBER:
            self._join_new(group, request, token, now_ms, decision)
        elif request.member_id in group.pending_members:
            self._add(group, request, request.member_id, token, now_ms, decision)
        else:
            self._join_again(group, request, token, now_ms, decision)

    def _refusal(self, group: ClassicGroup, request: JoinRequest) -> ErrorCode | None:
        config = self._config
        session_ms = request.session_timeout_ms
        if not config.session_timeout_ms_min <= session_ms <= config.session_timeout_ms_max:
            return ErrorCode.invalid_session_timeout
        if group.state is _DEAD:
            return ErrorCode.coordinator_not_available
        if not self._has_room(group, request.member_id):
            return ErrorCode.group_max_size_reached
        if request.member_id != UNKNOWN_MEMBER and request.member_id not in group.pending_members:
            error = check_member(group, request.member_id, request.instance_id)
            if error is not None:
                return error
            if group.state is _EMPTY:
                return ErrorCode.unknown_member_id
        names = [protocol.name for protocol in request.protocols]
        is_alone = len(group.members) == 1 and request.member_id in group.members
        if not request.protocol_type or not names:
            return ErrorCode.inconsistent_group_protocol
        if not is_alone and not group.supports(request.protocol_type, names):
            return ErrorCode.inconsistent_group_protocol
        return None

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """G4: ids that were handed out count too."""
        member = group.members.get(member_id)
        pending = len(group.pending_members) - (member_id in group.pending_members)
        if group.state is _PREPARING:
            if member is not None and member.awaiting_join is not None:
                return True
            return group.joined + pending < self._config.size_max
        return member is not None or len(group.members) + pending < self._config.size_max

    def _join_new(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        instance_id = request.instance_id
        member_id = f"{instance_id or request.client_id}-{self._new_id()}"
        if instance_id is not None and instance_id in group.static:
            self._replace(group, request, member_id, token, now_ms, decision)
        elif instance_id is None and request.must_know_its_id:
            group.pending_members[member_id] = None
            deadline_ms = now_ms + request.session_timeout_ms
            decision.arm(session_timer(group.group_id, member_id), deadline_ms)
            decision.reply(token, JoinResponse(ErrorCode.member_id_required, member_id))
        else:
            self._add(group, request, member_id, token, now_ms, decision)

    def _add(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        member_id: str,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        if group.state is _PREPARING and group.generation == 0:
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
            awaiting_join=token,
        )
        group.add(member)
        decision.arm(session_timer(group.group_id, member_id), now_ms + _NEW_MEMBER_JOIN_MS)
        self._rebalance_or_complete(group, _cause(Trigger.JOIN, member, request), now_ms, decision)

    def _join_again(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        member = group.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        if group.state is _COMPLETING and is_unchanged:
            # Its reply was lost: it is told again.
            self._reply_joined(group, member, token, decision)
            return
        if group.state is _STABLE and is_unchanged and not group.is_leader(member.member_id):
            self._reply_joined(group, member, token, decision)
            return
        trigger = Trigger.LEADER_REJOINED if is_unchanged else Trigger.SUBSCRIPTION_CHANGE
        self._update(group, member, request, token, decision)
        self._rebalance_or_complete(group, _cause(trigger, member, request), now_ms, decision)

    def _update(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        request: JoinRequest,
        token: Token,
        decision: Decision,
    ) -> None:
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        member.client_id, member.client_host = request.client_id, request.client_host
        earlier = group.await_join(member, token)
        if earlier is not None:
            # Sent again on another connection: nobody reads the first answer.
            decision.reply(earlier, JoinResponse(ErrorCode.unknown_member_id, member.member_id))

    def _replace(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        member_id: str,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        """G5: a static member is back under a new id, in whichever state; the old one is fenced."""
        assert request.instance_id is not None
        old_id = group.static[request.instance_id]
        old = group.members[old_id]
        was_leader, old_leader = group.is_leader(old_id), group.leader_id
        is_unchanged = (
            old.protocols == request.protocols
            and group.protocol is not None
            and request.protocol_type == group.protocol_type
        )
        self._fence(group, old, decision)
        decision.cancel(session_timer(group.group_id, old_id))
        member = group.replace_static(request.instance_id, member_id)
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        member.client_id, member.client_host = request.client_id, request.client_host
        if group.state is _STABLE and is_unchanged:
            self._reset_session(group, member, now_ms, decision)
            # G6: after a fail-over the new id must be the one that counts.
            decision.append(GroupMetadataKey(group.group_id), group.value())
            if request.can_skip_assignment:
                self._reply_joined(group, member, token, decision, skip_assignment=was_leader)
            else:
                # The old id as leader: the member must not assign anything.
                leader = old_leader or UNKNOWN_MEMBER
                self._reply_joined(group, member, token, decision, leader=leader)
            return
        decision.arm(session_timer(group.group_id, member_id), now_ms + _NEW_MEMBER_JOIN_MS)
        group.await_join(member, token)
        cause = _cause(Trigger.STATIC_MEMBER_REPLACED, member, request)
        self._rebalance_or_complete(group, cause, now_ms, decision)

    def _fence(self, group: ClassicGroup, member: ClassicMember, decision: Decision) -> None:
        fenced = ErrorCode.fenced_instance_id
        waiting = group.await_join(member, None)
        if waiting is not None:
            decision.reply(waiting, JoinResponse(fenced, member.member_id))
        if member.awaiting_sync is not None:
            decision.reply(member.awaiting_sync, SyncResponse(fenced))
            member.awaiting_sync = None

    # -- rebalances ------------------------------------------------------------------------------

    def _rebalance_or_complete(
        self, group: ClassicGroup, cause: Cause, now_ms: int, decision: Decision
    ) -> None:
        if group.is_in(_STABLE, _COMPLETING, _EMPTY):
            self.prepare_rebalance(group, cause, now_ms, decision)
        elif group.state is _PREPARING:
            self._complete_if_all_joined(group, now_ms, decision)

    def prepare_rebalance(
        self, group: ClassicGroup, cause: Cause, now_ms: int, decision: Decision
    ) -> None:
        """All members have to join again."""
        is_first = group.state is _EMPTY
        if group.state is _COMPLETING:
            decision.cancel(sync_timer(group.group_id))
            for member in group.members.values():
                member.assignment = b""
                self._answer_sync(member, SyncResponse(ErrorCode.rebalance_in_progress), decision)
        rebalance = Rebalance(group.group_id, cause, now_ms, group.generation)
        self._rebalances.setdefault(group.group_id, rebalance)
        self._move(group, _PREPARING, now_ms)
        delay_ms = self._config.initial_rebalance_delay_ms
        if is_first and delay_ms > 0:
            latest_ms = now_ms + max(group.rebalance_timeout_ms, delay_ms)
            self._initial_until_ms[group.group_id] = latest_ms
            group.new_member_added = False
            decision.arm(join_timer(group.group_id), now_ms + delay_ms)
            return
        decision.arm(join_timer(group.group_id), now_ms + group.rebalance_timeout_ms)
        self._complete_if_all_joined(group, now_ms, decision)

    def _complete_if_all_joined(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        if group.group_id not in self._initial_until_ms and group.has_all_joined:
            self._complete_join(group, now_ms, decision)

    def join_timed_out(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        """The time to join is over, or the delay of a first rebalance."""
        if group.state is not _PREPARING:
            return
        latest_ms = self._initial_until_ms.get(group.group_id)
        if latest_ms is not None and group.new_member_added and now_ms < latest_ms:
            # More are coming: wait for them, too.
            group.new_member_added = False
            delay_ms = min(self._config.initial_rebalance_delay_ms, latest_ms - now_ms)
            decision.arm(join_timer(group.group_id), now_ms + delay_ms)
            return
        self._initial_until_ms.pop(group.group_id, None)
        self._complete_join(group, now_ms, decision)

    def _complete_join(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        self._initial_until_ms.pop(group.group_id, None)
        for member in list(group.members.values()):
            # Static members keep their place until their session is over.
            if member.awaiting_join is None and member.instance_id is None:
                self._expel(group, member.member_id, decision)
        if group.members and not group.elect_joined_leader():
            decision.arm(join_timer(group.group_id), now_ms + group.rebalance_timeout_ms)
            return
        decision.cancel(join_timer(group.group_id))
        group.begin_generation()
        if not group.members:
            self._move(group, _EMPTY, now_ms)
            self._end_rebalance(group, now_ms, decision)
            decision.append(GroupMetadataKey(group.group_id), group.value())
            return
        self._move(group, _COMPLETING, now_ms)
        # G3: who does not ask for its assignment is expelled, too.
        decision.arm(sync_timer(group.group_id), now_ms + group.rebalance_timeout_ms)
        for member in group.members.values():
            group.pending_sync[member.member_id] = None
            token = group.await_join(member, None)
            if token is not None:
                self._reply_joined(group, member, token, decision)
            member.is_new = False
            self._reset_session(group, member, now_ms, decision)

    def _reply_joined(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        token: Token,
        decision: Decision,
        *,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> None:
        leader = leader or group.leader_id or UNKNOWN_MEMBER
        members: Sequence[JoinedMember] = ()
        if leader == member.member_id:
            protocol = group.protocol or ""
            members = [
                JoinedMember(each.member_id, each.instance_id, each.metadata_for(protocol))
                for each in group.members.values()
            ]
        decision.reply(
            token,
            JoinResponse(
                ErrorCode.none,
                member.member_id,
                group.generation,
                group.protocol_type,
                group.protocol,
                leader,
                skip_assignment,
                members,
            ),
        )

    def _move(self, group: ClassicGroup, state: ClassicState, now_ms: int) -> None:
        group.state = state
        group.state_since_ms = now_ms

    def _end_rebalance(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        rebalance = self._rebalances.pop(group.group_id, None)
        if rebalance is not None:
            rebalance.to_generation = group.generation
            rebalance.ended_ms = now_ms
            rebalance.members = len(group.members)
            decision.notices.append(rebalance)

    # -- SyncGroup -------------------------------------------------------------------------------

    def sync(
        self,
        group: ClassicGroup,
        request: SyncRequest,
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        error = self._sync_refusal(group, request)
        if error is not None:
            decision.reply(token, SyncResponse(error))
            return
        member = group.members[request.member_id]
        self._reset_session(group, member, now_ms, decision)
        if group.state is _STABLE:
            decision.reply(token, _assigned(group, member))
            return
        group.pending_sync.pop(member.member_id, None)
        if member.awaiting_sync is not None:
            earlier, member.awaiting_sync = member.awaiting_sync, None
            decision.reply(earlier, SyncResponse(ErrorCode.unknown_member_id))
        member.awaiting_sync = token
        if group.is_leader(member.member_id):
            self._complete_sync(group, request.assignments, now_ms, decision)

    def _sync_refusal(self, group: ClassicGroup, request: SyncRequest) -> ErrorCode | None:
        if group.state is _DEAD:
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
        if group.state is _PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.unknown_member_id if group.state is _EMPTY else None

    def _complete_sync(
        self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, decision: Decision
    ) -> None:
        """The leader has assigned: the generation is whole, and persisted."""
        self._move(group, _STABLE, now_ms)
        decision.append(GroupMetadataKey(group.group_id), group.value(assignments))
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            self._answer_sync(member, _assigned(group, member), decision)
        decision.cancel(sync_timer(group.group_id))
        group.pending_sync.clear()
        self._end_rebalance(group, now_ms, decision)

    def _answer_sync(
        self, member: ClassicMember, response: SyncResponse, decision: Decision
    ) -> None:
        if member.awaiting_sync is not None:
            decision.reply(member.awaiting_sync, response)
            member.awaiting_sync = None

    def sync_timed_out(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        if group.state is not _COMPLETING:
            return
        silent = list(group.pending_sync)
        if not silent:
            return
        first = group.members.get(silent[0])
        for member_id in silent:
            self._expel(group, member_id, decision)
        cause = _cause(Trigger.SYNC_TIMEOUT, first)
        self.prepare_rebalance(group, cause, now_ms, decision)

    # -- Heartbeat, LeaveGroup, silence ----------------------------------------------------------

    def heartbeat(
        self,
        group: ClassicGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        decision: Decision,
    ) -> ErrorCode:
        if group.state is _DEAD:
            return ErrorCode.coordinator_not_available
        error = check_member(group, member_id, instance_id)
        if error is not None:
            return error
        if generation != group.generation:
            return ErrorCode.illegal_generation
        if group.state is _EMPTY:
            return ErrorCode.unknown_member_id
        self._reset_session(group, group.members[member_id], now_ms, decision)
        preparing = group.state is _PREPARING
        return ErrorCode.rebalance_in_progress if preparing else ErrorCode.none

    def _reset_session(
        self, group: ClassicGroup, member: ClassicMember, now_ms: int, decision: Decision
    ) -> None:
        key = session_timer(group.group_id, member.member_id)
        decision.arm(key, now_ms + member.session_timeout_ms)

    def leave(
        self,
        group: ClassicGroup,
        leaving: Sequence[LeavingMember],
        now_ms: int,
        decision: Decision,
    ) -> list[ErrorCode]:
        """One error for each; the rebalance, if there is one, is for all of them."""
        errors = []
        cause: Cause | None = None
        for each in leaving:
            error, removed = self._leave_one(group, each, decision)
            errors.append(error)
            if removed is not None and cause is None:
                cause = Cause(
                    Trigger.LEAVE,
                    removed.member_id,
                    removed.client_id,
                    removed.client_host,
                    each.reason,
                )
        if cause is not None:
            self._rebalance_or_complete(group, cause, now_ms, decision)
        elif group.state is _PREPARING:
            self._complete_if_all_joined(group, now_ms, decision)
        return errors

    def _leave_one(
        self, group: ClassicGroup, leaving: LeavingMember, decision: Decision
    ) -> tuple[ErrorCode, ClassicMember | None]:
        if group.state is _DEAD:
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
            group.pending_members.pop(member_id)
            decision.cancel(session_timer(group.group_id, member_id))
            return ErrorCode.none, None
        if member_id not in group.members:
            return ErrorCode.unknown_member_id, None
        return ErrorCode.none, self._expel(group, member_id, decision)

    def session_timed_out(
        self, group: ClassicGroup, member_id: str, now_ms: int, decision: Decision
    ) -> None:
        if member_id in group.pending_members:
            group.pending_members.pop(member_id)
            if group.state is _PREPARING:
                self._complete_if_all_joined(group, now_ms, decision)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.awaiting_join or member.awaiting_sync):
            # It waits for us: silence is its duty.
            self._reset_session(group, member, now_ms, decision)
            return
        self._expel(group, member_id, decision)
        cause = _cause(Trigger.SESSION_TIMEOUT, member)
        self._rebalance_or_complete(group, cause, now_ms, decision)

    def _expel(
        self, group: ClassicGroup, member_id: str, decision: Decision
    ) -> ClassicMember | None:
        """G24: with a member all that waits for it goes."""
        decision.cancel(session_timer(group.group_id, member_id))
        member = group.remove(member_id)
        if member is None:
            return None
        if member.awaiting_join is not None:
            gone = JoinResponse(ErrorCode.unknown_member_id, member_id)
            decision.reply(member.awaiting_join, gone)
            member.awaiting_join = None
        self._answer_sync(member, SyncResponse(ErrorCode.unknown_member_id), decision)
        return member

    # -- load and unload -------------------------------------------------------------------------

    def loaded(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        """The group comes from the log: sessions begin anew."""
        for member in group.members.values():
            self._reset_session(group, member, now_ms, decision)

    def forget(self, group_id: str) -> None:
        self._rebalances.pop(group_id, None)
        self._initial_until_ms.pop(group_id, None)


def check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Whether a request is from a member of the group, and not from one that was replaced."""
    if instance_id is not None:
        held_by = group.static.get(instance_id)
        if held_by is None:
            return ErrorCode.unknown_member_id
        if held_by != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in group.members else ErrorCode.unknown_member_id


def _assigned(group: ClassicGroup, member: ClassicMember) -> SyncResponse:
    return SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


def _cause(
    trigger: Trigger, member: ClassicMember | None, request: JoinRequest | None = None
) -> Cause:
    if member is None:
        return Cause(trigger)
    reason = request.reason if request is not None else ""
    return Cause(trigger, member.member_id, member.client_id, member.client_host, reason)
