"""Decisions about classic groups: who joins, when a generation is complete, who has been silent.

Each method adds its decisions to an `Event`. Only a whole generation is persisted, when its
assignment arrives, or when the last member is gone. How members join is in `classic_join.py`, how
a group rebalances in `classic_rebalance.py`.
Hazards G1–G7, G15, G16, G24.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.env.slices import Pace, Slices
from suwi.group.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    Committer,
    LeavingMember,
    SyncRequest,
    SyncResponse,
    reset_session,
    session_timer,
    sync_timer,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.classic_join import ClassicGroupConfig, ClassicJoin, check_member
from suwi.group.classic_rebalance import ClassicRebalances, answer_sync, cause_of, move
from suwi.group.history import Cause, Trigger

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
