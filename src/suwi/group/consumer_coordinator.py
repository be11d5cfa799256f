"""Decisions about consumer groups (KIP-848): heartbeats, time-outs, new targets.

Each method adds its decisions to an `Event`. A heartbeat updates the member; a changed
subscription or topic raises the group's epoch; an epoch without an assignment gets one, at most
once per assignment interval; the member then moves one step towards its target.
A refused request decides nothing. Work that takes long is handed out as a `Job` when a timer
fires: step it between other events, then give it to `job_done`.
Hazards G17–G23.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event, TimerKey
from suwi.env.slices import Pace, Slices, sort
from suwi.group.classic_group import (
    PROTOCOL_TYPE,
    ClassicGroup,
    JoinRequest,
    JoinResponse,
    LeavingMember,
)
from suwi.group.consumer_classic_members import ClassicMembers
from suwi.group.consumer_draft import Draft
from suwi.group.consumer_group import (
    LEAVE_STATIC_EPOCH,
    NOTHING_OWNED,
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberState,
    append_current,
    append_group_tombstones,
    consumer_rebalance_timer,
    consumer_session_timer,
    partitions_of,
)
from suwi.group.consumer_group_records import ConsumerGroupMemberMetadataValue
from suwi.group.consumer_migration import can_downgrade, downgrade, upgrade
from suwi.group.consumer_updates import ConsumerUpdates, cause_of
from suwi.group.consumer_validation import (
    Refused,
    check_epoch,
    check_request,
    check_unreleased,
    find_member,
    find_static,
    unknown_member,
)
from suwi.group.history import Cause, Trigger
from suwi.group.regular_expressions import InvalidRegularExpression, compile_regex
from suwi.group.target_assignment import Job


class ConsumerCoordinator:
    def __init__(
        self, config_of: Callable[[str], ConsumerGroupConfig], new_id: Callable[[], str]
    ) -> None:
        """`config_of` a group by its id; `new_id` makes member ids for clients that bring none."""
        self._config_of = config_of
        self._new_id = new_id
        self.updates = ConsumerUpdates(config_of)
        self.classic_members = ClassicMembers(config_of, new_id, self.updates)

    # -- ConsumerGroupHeartbeat ------------------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup | None, request: HeartbeatRequest, event: Event
    ) -> Slices[HeartbeatResponse]:
        config = self._config_of(request.group_id)
        try:
            check_request(request, config.assignors)
            if group is None and request.member_epoch != 0:
                message = f"Group {request.group_id} not found."
                return HeartbeatResponse(ErrorCode.group_id_not_found, message)
            group = group or ConsumerGroup(request.group_id)
            if request.member_epoch < 0:
                return (yield from self._leave(group, request, event))
            before, member = self._find(group, request, config)
            if request.topic_regex and request.topic_regex not in group.regex_subscribers:
                compile_regex(request.topic_regex)
        except Refused as refusal:
            return HeartbeatResponse(refusal.error, str(refusal))
        except InvalidRegularExpression as error:
            return HeartbeatResponse(ErrorCode.invalid_regular_expression, str(error))
        if request.may_see is not None:
            self.updates.regexes.seen_by[group.group_id] = request.may_see
        subscription = yield from _merged(member, request)
        draft = Draft.of(group, before, replace(member, subscription=subscription))
        yield from self.updates.replace_static(draft, event)
        self.classic_members.forget(group.group_id, draft.replaced_id or "")
        yield from self.updates.update(draft, member, request.owned, event)
        session_ms = event.now_ms + config.session_timeout_ms
        event.arm(consumer_session_timer(group.group_id, member.member_id), session_ms)
        was, after = member.current, draft.member.current
        # G19: a member that is behind, or sends all its fields, may have missed the last response.
        is_told = request.is_full or request.member_epoch != member.epoch
        assigned = None
        if is_told or after is not was:
            assigned = yield from partitions_of(after.assigned)
            is_told = is_told or assigned != (yield from partitions_of(was.assigned))
        return HeartbeatResponse(
            member_id=member.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            assignment=assigned if is_told else None,
        )

    def _find(
        self, group: ConsumerGroup, request: HeartbeatRequest, config: ConsumerGroupConfig
    ) -> tuple[ConsumerGroupMember | None, ConsumerGroupMember]:
        """The member as the group has it, and as it is to be updated. Raises `Refused`."""
        member_id, instance_id = request.member_id or self._new_id(), request.instance_id
        is_joining = request.member_epoch == 0
        known = group.members.get(member_id)
        if instance_id is not None:
            holder = group.static_member(instance_id)
            if not is_joining:
                known = find_static(group, member_id, instance_id)
            elif holder is not None and (holder is not known or holder.epoch == LEAVE_STATIC_EPOCH):
                check_unreleased(holder, member_id)
                rejoined = replace(holder.current, epoch=0, previous_epoch=0)
                return holder, ConsumerGroupMember(member_id, holder.subscription, rejoined)
        if known is None:
            if not is_joining:
                raise unknown_member(member_id, group.group_id)
            if len(group.members) >= config.size_max:
                raise Refused(
                    ErrorCode.group_max_size_reached,
                    f"The group has reached its maximum of {config.size_max} members.",
                )
            return None, ConsumerGroupMember(member_id)
        check_epoch(known, request.member_epoch, request.owned)
        return known, known

    # -- members leave ---------------------------------------------------------------------------

    def _leave(
        self, group: ConsumerGroup, request: HeartbeatRequest, event: Event
    ) -> Slices[HeartbeatResponse]:
        member = find_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            yield from self._leave_for_a_while(group, member, event)
        else:
            cause = cause_of(Trigger.LEAVE, member)
            yield from self._remove(group, [member], cause, event)
        return HeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def _leave_for_a_while(
        self, group: ConsumerGroup, member: ConsumerGroupMember, event: Event
    ) -> Slices[None]:
        """G22: its place is kept for the session timeout. When it comes back, it owns the same
        partitions from epoch 0 on."""
        kept = {t: dict.fromkeys(epochs, 0) for t, epochs in member.current.assigned.items()}
        current = replace(
            member.current,
            epoch=LEAVE_STATIC_EPOCH,
            assigned=kept,
            pending_revocation=NOTHING_OWNED,
        )
        yield from append_current(event, group.group_id, member.member_id, current)
        event.cancel(consumer_rebalance_timer(group.group_id, member.member_id))
        session_ms = self._config_of(group.group_id).session_timeout_ms
        key = consumer_session_timer(group.group_id, member.member_id)
        event.arm(key, event.now_ms + session_ms)

    def _remove(
        self,
        group: ConsumerGroup,
        leaving: Sequence[ConsumerGroupMember],
        cause: Cause,
        event: Event,
    ) -> Slices[None]:
        """If the last member of the consumer protocol leaves, the rest may become a classic
        group."""
        gone = {member.member_id for member in leaving}
        for member_id in gone:
            self.classic_members.forget(group.group_id, member_id)
        if len(group.members) - group.classic_members <= len(gone):
            left = [m for member_id, m in group.members.items() if member_id not in gone]
            if (yield from self._downgrade(group, left, event)):
                return
        yield from self.updates.remove(group, leaving, cause, event)

    def _downgrade(
        self, group: ConsumerGroup, left: Sequence[ConsumerGroupMember], event: Event
    ) -> Slices[bool]:
        """Returns whether the group was downgraded: the whole classic group must fit into a
        batch."""
        if not can_downgrade(left, self._config_of(group.group_id)):
            return False
        conversion = event.part()
        for member_id in group.members:
            self.updates.cancel_timers(group.group_id, member_id, conversion)
        self.updates.cancel_group_timers(group.group_id, conversion)
        downgrade(group, left, conversion)
        if not (yield from event.take_if_it_fits(conversion)):
            return False
        self.forget(group.group_id)
        return True

    def delete(self, group: ConsumerGroup, event: Event) -> ErrorCode:
        """DeleteGroups."""
        if not group.is_empty:
            return ErrorCode.non_empty_group
        append_group_tombstones(event, group)
        self.updates.cancel_group_timers(group.group_id, event)
        self.forget(group.group_id)
        return ErrorCode.none

    # -- the classic protocol --------------------------------------------------------------------

    def upgrade(
        self, classic: ClassicGroup, request: HeartbeatRequest, event: Event
    ) -> Slices[HeartbeatResponse]:
        """A heartbeat to a classic group. If a member joins, and the group can be upgraded, it
        becomes a consumer group with this event, and all calls that wait in the classic group are
        answered."""
        if request.member_epoch != 0:
            # It was fenced by a downgrade. It may join, and upgrade the group again.
            refusal = unknown_member(request.member_id, request.group_id)
            return HeartbeatResponse(refusal.error, str(refusal))
        config = self._config_of(classic.group_id)
        conversion = event.part()
        group = yield from upgrade(classic, config, conversion)
        if group is None:
            message = f"Group {classic.group_id} is not a consumer group."
            return HeartbeatResponse(ErrorCode.group_id_not_found, message)
        response = yield from self.heartbeat(group, request, conversion)
        if response.error is not ErrorCode.none:
            return response
        if not (yield from event.take_if_it_fits(conversion)):
            self.forget(classic.group_id)
            message = f"Group {classic.group_id} is too large to be upgraded."
            return HeartbeatResponse(ErrorCode.unknown_server_error, message)
        return response

    def join(self, group: ConsumerGroup, request: JoinRequest, event: Event) -> Slices[None]:
        """JoinGroup of a group that has members. (An empty one is deleted first.)"""
        joining = self.classic_members.prepare(group, request, event)
        if joining is None:
            return
        draft = joining.draft
        left = [*draft.members().values()]
        self.classic_members.forget(group.group_id, draft.replaced_id or "")
        is_downgraded = False
        if draft.replaced_id is not None:
            is_downgraded = yield from self._downgrade(group, left, event)
        if is_downgraded:
            generation = group.epoch
        else:
            yield from self.classic_members.join(joining, event)
            generation = draft.member.epoch
        event.reply(
            JoinResponse(
                ErrorCode.none,
                draft.member.member_id,
                generation,
                PROTOCOL_TYPE,
                request.protocols[0].name,
            )
        )

    def leave(
        self, group: ConsumerGroup, leaving: Sequence[LeavingMember], event: Event
    ) -> Slices[list[ErrorCode]]:
        """LeaveGroup: returns one error for each member. There is one rebalance for all of them."""
        found = yield from self.classic_members.leaving(group, leaving)
        members: dict[str, ConsumerGroupMember] = {}
        reason = ""
        for each, member in zip(leaving, found, strict=True):
            if isinstance(member, ConsumerGroupMember):
                members[member.member_id] = member
                reason = reason or each.reason
        if members:
            first = next(iter(members.values()))
            cause = cause_of(Trigger.LEAVE, first, reason)
            gone = list(members.values())
            yield from self._remove(group, gone, cause, event)
        return [each if isinstance(each, ErrorCode) else ErrorCode.none for each in found]

    # -- time and topics -------------------------------------------------------------------------

    def timer_expired(
        self, group: ConsumerGroup, key: TimerKey, event: Event
    ) -> Slices[Job | None]:
        """Handles the timers of `consumer_group.py`. A job that it returns is stepped by the
        caller."""
        config = self._config_of(group.group_id)
        match key:
            case ("consumer-session", _, str() as member_id):
                timed_out = Trigger.SESSION_TIMEOUT
                yield from self._expire(group, member_id, timed_out, event)
            case ("consumer-rebalance", _, str() as member_id):
                timed_out = Trigger.REBALANCE_TIMEOUT
                yield from self._expire(group, member_id, timed_out, event)
            case ("consumer-assignment", _):
                targets = self.updates.targets
                return (yield from targets.due(group, config, event))
            case ("consumer-regex", _):
                job = self.updates.regexes.due(group, config, event)
                if job is None or not job.is_done:
                    return job
                yield from self.job_done(group, job, event)
        return None

    def _expire(
        self, group: ConsumerGroup, member_id: str, trigger: Trigger, event: Event
    ) -> Slices[None]:
        member = group.members.get(member_id)
        if member is not None:
            cause = cause_of(trigger, member)
            yield from self._remove(group, [member], cause, event)

    def job_done(self, group: ConsumerGroup, job: Job, event: Event) -> Slices[None]:
        """A job that `timer_expired` returned is done. Its result is ignored if the group has a
        newer job."""
        config = self._config_of(group.group_id)
        yield from self.updates.targets.computed(group, job, config, event)
        yield from self.updates.resolved(group, job, event)

    # -- load and unload -------------------------------------------------------------------------

    def loaded(self, group: ConsumerGroup, event: Event) -> Slices[None]:
        """The group was loaded from the log: time-outs begin anew."""
        config = self._config_of(group.group_id)
        for member in group.members.values():
            session_ms = config.session_timeout_ms
            value = member.subscription
            if value is not None and value.classic is not None:
                session_ms = value.classic.session_timeout_ms
            key = consumer_session_timer(group.group_id, member.member_id)
            event.arm(key, event.now_ms + session_ms)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                key = consumer_rebalance_timer(group.group_id, member.member_id)
                event.arm(key, event.now_ms + max(member.rebalance_timeout_ms, 0))
        if group.epoch > group.assignment_epoch and group.members:
            self.updates.targets.wait(group, config, event)
        yield from self.updates.topics_changed(group, event)

    def forget(self, group_id: str) -> None:
        """The group is gone, or led by another broker."""
        self.updates.forget(group_id)
        self.classic_members.forget_group(group_id)


def _merged(
    member: ConsumerGroupMember, request: HeartbeatRequest
) -> Slices[ConsumerGroupMemberMetadataValue]:
    """Fields that the request leaves out keep their value."""
    known = member.subscription or ConsumerGroupMemberMetadataValue(
        None, None, "", "", (), None, -1, None
    )
    names = known.topic_names
    if request.topic_names is not None:
        names = tuple((yield from sort(set(request.topic_names), str, Pace())))
    timeout_ms = request.rebalance_timeout_ms
    return ConsumerGroupMemberMetadataValue(
        known.instance_id if request.instance_id is None else request.instance_id,
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        names,
        known.topic_regex if request.topic_regex is None else request.topic_regex,
        known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        known.server_assignor if request.server_assignor is None else request.server_assignor,
        None,
    )
