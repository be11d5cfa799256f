"""What follows when a member, its subscription or a topic of a consumer group changes.

A new epoch if there is a cause for one, then a new target, then one step of the member towards it.
This is the same for members of both protocols.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from suwi.coordinator.event import Event
from suwi.coordinator.topics import Topics
from suwi.env.slices import Pace, Slices
from suwi.group.consumer_draft import Draft, keeps_topics, subscribed_topics, unused_regexes
from suwi.group.consumer_group import (
    NEW_ASSIGNMENT,
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
    append_assignment_epoch,
    append_current,
    append_epoch,
    append_member_tombstones,
    append_regex,
    append_subscription,
    append_target,
    assignment_timer,
    consumer_rebalance_timer,
    consumer_session_timer,
    regex_timer,
)
from suwi.group.consumer_group_records import ConsumerGroupRegularExpressionValue
from suwi.group.history import Cause, Rebalance, Trigger
from suwi.group.reconciliation import reconcile
from suwi.group.regular_expressions import MaySee, resolve
from suwi.group.target_assignment import Job, Targets, metadata_hash, topic_ids

_NO_VERSION: Final = -1


class ConsumerUpdates:
    """Its state is not persisted: the image that each group was compared with, jobs, rebalances."""

    def __init__(self, config_of: Callable[[str], ConsumerGroupConfig]) -> None:
        self._config_of = config_of
        self.targets = Targets()
        self.regexes = Regexes()
        self.rebalances = Rebalances()
        self._compared: dict[str, int] = {}

    # -- a member changes ------------------------------------------------------------------------

    def update(
        self, draft: Draft, member: ConsumerGroupMember, owned: OwnedPartitions | None, event: Event
    ) -> Slices[None]:
        """Replaces `member` by the draft's member: decides what follows for the group, and then
        moves the new member one step towards its target."""
        group, after, pace = draft.group, draft.member, Pace()
        assert after.subscription is not None
        config = self._config_of(group.group_id)
        if after.subscription != member.subscription or draft.replaced_id is not None:
            append_subscription(event, group.group_id, after.member_id, after.subscription)
        has_other_regex = after.topic_regex != member.topic_regex
        if has_other_regex:
            self.regexes.change(draft, config, event)
        is_changed = has_other_regex
        if after.topic_names != member.topic_names:
            is_changed |= set(after.topic_names) != set(member.topic_names)
            if pace.is_over(len(after.topic_names)):
                yield
        trigger = Trigger.JOIN if draft.before is None else Trigger.SUBSCRIPTION_CHANGE
        cause = cause_of(trigger, after)
        yield from self._bump(draft, cause if is_changed else None, event)
        if draft.epoch > draft.assignment_epoch:
            yield from self.targets.assign(draft, config, event)
        yield from self._reconcile(draft, owned, is_changed, event)
        self._end_rebalance(draft, event)

    def _bump(self, draft: Draft, cause: Cause | None, event: Event) -> Slices[None]:
        """A new epoch, if there is a cause, or if the topics have changed (G21)."""
        group = draft.group
        seen = self._compared.get(group.group_id, _NO_VERSION)
        if cause is None and seen == event.topics.version and group.epoch > 0:
            return
        if seen not in (event.topics.version, _NO_VERSION):
            self.regexes.topics_changed(group, event)
        self._compared[group.group_id] = event.topics.version
        keeps = seen == event.topics.version and keeps_topics(group, draft.before, draft.member)
        if Pace().is_over(len(draft.member.topic_names)):
            yield
        if keeps:
            found = group.metadata_hash
        else:
            names = yield from draft.subscribed_topics()
            found = yield from metadata_hash(names, event.topics)
        if cause is None and group.epoch > 0:
            if found == group.metadata_hash:
                return
            cause = _topics_cause(group, event.topics)
        draft.epoch += 1
        append_epoch(event, group.group_id, draft.epoch, found)
        cause = cause or cause_of(Trigger.JOIN, draft.member)
        self.rebalances.begin(group, cause, event.now_ms)

    def _reconcile(
        self, draft: Draft, owned: OwnedPartitions | None, is_changed: bool, event: Event
    ) -> Slices[None]:
        member, group_id = draft.member, draft.group.group_id
        if member.is_reconciled_to(draft.assignment_epoch) and not is_changed:
            return
        subscribed = yield from topic_ids(draft.topics_of_member(), event.topics)
        current = yield from reconcile(
            member,
            draft.assignment_epoch,
            draft.target,
            subscribed,
            owned,
            draft.owner,
            subscription_changed=is_changed,
        )
        if current is member.current and current is not NEW_ASSIGNMENT:
            return
        yield from append_current(event, group_id, member.member_id, current)
        timer = consumer_rebalance_timer(group_id, member.member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            event.arm(timer, event.now_ms + member.rebalance_timeout_ms)
        else:
            event.cancel(timer)
        draft.member = replace(member, current=current)

    def _end_rebalance(self, draft: Draft, event: Event) -> None:
        group, member = draft.group, draft.member
        if draft.epoch > draft.assignment_epoch:
            return
        is_known = draft.before is not None
        place = draft.replaced_id or member.member_id
        others_follow = len(group.members) == is_known or (
            draft.assignment_epoch == group.assignment_epoch and group.are_others_reconciled(place)
        )
        if others_follow and member.is_reconciled_to(draft.assignment_epoch):
            count = len(group.members) + (not is_known)
            self.rebalances.end(group.group_id, draft.epoch, count, event)

    def replace_static(self, draft: Draft, event: Event) -> Slices[None]:
        """G22: a static member is back under a new id; it takes over target and partitions."""
        old_id = draft.replaced_id
        if old_id is None:
            return
        group_id, member = draft.group.group_id, draft.member
        append_member_tombstones(event, group_id, [old_id])
        yield from append_target(event, group_id, member.member_id, draft.target)
        yield from append_current(event, group_id, member.member_id, member.current)
        self.cancel_timers(group_id, old_id, event)

    # -- members go ------------------------------------------------------------------------------

    def remove(
        self,
        group: ConsumerGroup,
        leaving: Sequence[ConsumerGroupMember],
        cause: Cause,
        event: Event,
    ) -> Slices[None]:
        """Removes members for good. G24: their timers are cancelled."""
        group_id, pace = group.group_id, Pace()
        append_member_tombstones(event, group_id, [member.member_id for member in leaving])
        for member in leaving:
            self.cancel_timers(group_id, member.member_id, event)
            # How long the replay of a member's tombstones takes depends on what it had.
            if pace.is_over(8 + len(member.topic_names) + len(member.current.assigned)):
                yield
        for regex in unused_regexes(group, leaving):
            append_regex(event, group_id, regex, None)
        is_same_image = self._compared.get(group_id) == event.topics.version
        if is_same_image and len(leaving) == 1 and keeps_topics(group, leaving[0], None):
            found = group.metadata_hash
        else:
            names = yield from subscribed_topics(group, leaving)
            found = yield from metadata_hash(names, event.topics)
        epoch = group.epoch + 1
        append_epoch(event, group_id, epoch, found)
        self.rebalances.begin(group, cause, event.now_ms)
        if len(leaving) < len(group.members):
            self.targets.wait(group, self._config_of(group_id), event)
            return
        # G21: an empty group has nothing to assign.
        append_assignment_epoch(event, group_id, epoch, 0)
        self.rebalances.end(group_id, epoch, 0, event)
        self.cancel_group_timers(group_id, event)
        self.forget(group_id)

    def cancel_timers(self, group_id: str, member_id: str, event: Event) -> None:
        event.cancel(consumer_session_timer(group_id, member_id))
        event.cancel(consumer_rebalance_timer(group_id, member_id))

    def cancel_group_timers(self, group_id: str, event: Event) -> None:
        event.cancel(assignment_timer(group_id))
        event.cancel(regex_timer(group_id))

    # -- topics ----------------------------------------------------------------------------------

    def topics_changed(self, group: ConsumerGroup, event: Event) -> Slices[None]:
        """Compares a group with the topics of a new image. Groups are compared a few at a time;
        a heartbeat compares its own group if that has not been done yet."""
        if group.is_empty or self._compared.get(group.group_id) == event.topics.version:
            return
        self._compared[group.group_id] = event.topics.version
        self.regexes.topics_changed(group, event)
        found = yield from metadata_hash(group.subscribed_topics(), event.topics)
        if found != group.metadata_hash:
            cause = _topics_cause(group, event.topics)
            self._bump_without_member(group, found, cause, event)

    def _bump_without_member(
        self, group: ConsumerGroup, found: int, cause: Cause, event: Event
    ) -> None:
        append_epoch(event, group.group_id, group.epoch + 1, found)
        self.rebalances.begin(group, cause, event.now_ms)
        self.targets.wait(group, self._config_of(group.group_id), event)

    def resolved(self, group: ConsumerGroup, job: Job, event: Event) -> Slices[None]:
        """A job has resolved the group's regular expressions."""
        config = self._config_of(group.group_id)
        regexes = self.regexes.resolved(group, job, config, event)
        if regexes is not None:
            names = yield from subscribed_topics(group, (), None, regexes)
            found = yield from metadata_hash(names, event.topics)
            cause = Cause(Trigger.SUBSCRIPTION_CHANGE, reason="regular expressions resolved anew")
            self._bump_without_member(group, found, cause, event)

    def forget(self, group_id: str) -> None:
        self.targets.forget(group_id)
        self.regexes.forget(group_id)
        self.rebalances.forget(group_id)
        self._compared.pop(group_id, None)


def _topics_cause(group: ConsumerGroup, topics: Topics) -> Cause:
    gone = any(
        topics.by_id(topic_id) is None for target in group.targets.values() for topic_id in target
    )
    return Cause(Trigger.TOPIC_DELETED if gone else Trigger.NEW_PARTITIONS)


class Rebalances:
    """Begun with a new epoch, ended when all members have reached it."""

    def __init__(self) -> None:
        self._of_group: dict[str, Rebalance] = {}

    def begin(self, group: ConsumerGroup, cause: Cause, now_ms: int) -> None:
        """If there are several causes, the first one counts."""
        rebalance = Rebalance(group.group_id, cause, now_ms, group.epoch)
        self._of_group.setdefault(group.group_id, rebalance)

    def end(self, group_id: str, epoch: int, members: int, event: Event) -> None:
        rebalance = self._of_group.pop(group_id, None)
        if rebalance is not None:
            rebalance.to_generation = epoch
            rebalance.ended_ms = event.now_ms
            rebalance.members = members
            event.notices.append(rebalance)

    def forget(self, group_id: str) -> None:
        self._of_group.pop(group_id, None)


def cause_of(trigger: Trigger, member: ConsumerGroupMember, reason: str = "") -> Cause:
    value = member.subscription
    if value is None:
        return Cause(trigger, member.member_id, reason=reason)
    return Cause(trigger, member.member_id, value.client_id, value.client_host, reason)


_BATCH_INTERVAL_MS: Final = 10_000
"""The least time between two resolutions, however often topics change."""


class Regexes:
    """What the regular expressions of groups match. An expression is resolved when its first
    subscriber brings it, when topics come or go, and each refresh interval. All of a group are
    resolved together, so that they cost one rebalance."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._refreshed_ms: dict[str, int] = {}
        self.seen_by: dict[str, MaySee] = {}
        """By group: the rights of the member that sent the last heartbeat, as in Kafka."""

    def change(self, draft: Draft, config: ConsumerGroupConfig, event: Event) -> None:
        """The member has another expression, or none."""
        group_id = draft.group.group_id
        before = draft.before.topic_regex if draft.before is not None else None
        after = draft.member.topic_regex
        regexes = dict(draft.regexes)
        if before is not None and draft.group.regex_subscribers[before] == 1 and before in regexes:
            append_regex(event, group_id, before, None)
            del regexes[before]
        if after is not None and after not in regexes:
            job = self._job(group_id, [after], event.topics)
            if job.step():
                value = ConsumerGroupRegularExpressionValue(
                    job.result[after], event.topics.version, event.now_ms
                )
                append_regex(event, group_id, after, value)
                regexes[after] = value
                self._arm_refresh(group_id, config, event)
            else:
                event.arm(regex_timer(group_id), event.now_ms)
        draft.regexes = regexes

    def topics_changed(self, group: ConsumerGroup, event: Event) -> None:
        if group.regex_subscribers:
            refreshed_ms = self._refreshed_ms.get(group.group_id)
            due_ms = event.now_ms if refreshed_ms is None else refreshed_ms + _BATCH_INTERVAL_MS
            event.arm(regex_timer(group.group_id), max(event.now_ms, due_ms))

    def due(self, group: ConsumerGroup, config: ConsumerGroupConfig, event: Event) -> Job | None:
        """Returns the job, which may be done already."""
        if config.hides_topics and group.group_id not in self.seen_by:
            event.arm(regex_timer(group.group_id), event.now_ms + _BATCH_INTERVAL_MS)
            return None
        topics = event.topics
        job = self._jobs.get(group.group_id)
        if job is None and group.regex_subscribers:
            job = self._job(group.group_id, sorted(group.regex_subscribers), topics)
            self._jobs[group.group_id] = job
            job.step()
        return job

    def resolved(
        self, group: ConsumerGroup, job: Job, config: ConsumerGroupConfig, event: Event
    ) -> dict[str, ConsumerGroupRegularExpressionValue] | None:
        """Returns all expressions with their topics if one of them has changed, otherwise None."""
        if self._jobs.get(group.group_id) is not job:
            return None
        del self._jobs[group.group_id]
        self._arm_refresh(group.group_id, config, event)
        if job.version != event.topics.version:
            self.topics_changed(group, event)
        regexes = dict(group.regexes)
        for regex, found in job.result.items():
            known = regexes.get(regex)
            if regex not in group.regex_subscribers or (
                known is not None and known.topics == found
            ):
                continue
            regexes[regex] = ConsumerGroupRegularExpressionValue(found, job.version, event.now_ms)
            append_regex(event, group.group_id, regex, regexes[regex])
        if not group.regex_subscribers.keys() <= regexes.keys():
            # An expression came while the job ran.
            event.arm(regex_timer(group.group_id), event.now_ms)
        return regexes if regexes != group.regexes else None

    def _arm_refresh(self, group_id: str, config: ConsumerGroupConfig, event: Event) -> None:
        self._refreshed_ms[group_id] = event.now_ms
        event.arm(regex_timer(group_id), event.now_ms + config.regex_refresh_interval_ms)

    def forget(self, group_id: str) -> None:
        self._jobs.pop(group_id, None)
        self._refreshed_ms.pop(group_id, None)
        self.seen_by.pop(group_id, None)

    def _job(self, group_id: str, regexes: Sequence[str], topics: Topics) -> Job:
        may_see = self.seen_by.get(group_id)
        return Job(group_id, topics.version, resolve(regexes, topics.names(), may_see))
