"""When a consumer group gets a new target assignment: at once, after its interval, or in slices.

`assign` is asked when a member has changed, `due` when the timer fires, `computed` when a job that
`due` has handed out is done. One job per group: what changes meanwhile waits for the next one.
"""

from collections import Counter
from collections.abc import Mapping

from suwi.coordinator.event import Event
from suwi.coordinator.topics import Topics
from suwi.env.slices import Slices
from suwi.group.assignors import ASSIGNORS
from suwi.group.consumer_draft import Draft
from suwi.group.consumer_group import (
    NO_ASSIGNMENT,
    ConsumerGroup,
    ConsumerGroupConfig,
    ConsumerGroupMember,
    Target,
    append_assignment,
    assignment_timer,
)
from suwi.group.consumer_group_records import ConsumerGroupRegularExpressionValue
from suwi.group.target_assignment import Job, assign


class Targets:
    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def assign(self, draft: Draft, config: ConsumerGroupConfig, event: Event) -> Slices[None]:
        """Now, if it is time and does not take long. The first target of a group never waits."""
        group = draft.group
        is_first = draft.assignment_epoch <= 0
        if group.group_id in self._jobs and not is_first:
            return
        due_ms = due_at(group, config, event.now_ms)
        if due_ms > event.now_ms and not is_first:
            event.arm(assignment_timer(group.group_id), due_ms)
            return
        members, targets = draft.members(), draft.targets()
        assignor = preferred_assignor(draft.assignors(), config)
        job = _job(
            group.group_id, draft.epoch, assignor, members, targets, draft.regexes, event.topics
        )
        if is_first:
            yield from job.running()
        elif not job.step():
            self._jobs[group.group_id] = job
            event.arm(assignment_timer(group.group_id), event.now_ms)
            return
        made = job.result, targets, draft.epoch
        yield from append_assignment(event, group.group_id, *made)
        draft.assignment_epoch = draft.epoch
        draft.target = job.result.get(draft.member.member_id, NO_ASSIGNMENT)
        event.cancel(assignment_timer(group.group_id))

    def due(
        self, group: ConsumerGroup, config: ConsumerGroupConfig, event: Event
    ) -> Slices[Job | None]:
        """What is left to be done, if it takes longer."""
        job = self._jobs.get(group.group_id)
        if job is not None:
            return job
        if group.is_empty or group.epoch <= group.assignment_epoch:
            return None
        due_ms = due_at(group, config, event.now_ms)
        if due_ms > event.now_ms:
            event.arm(assignment_timer(group.group_id), due_ms)
            return None
        assignor = preferred_assignor(group.assignors, config)
        members, targets = dict(group.members), dict(group.targets)
        regexes = dict(group.regexes)
        job = _job(group.group_id, group.epoch, assignor, members, targets, regexes, event.topics)
        self._jobs[group.group_id] = job
        if not job.step():
            return job
        yield from self.computed(group, job, config, event)
        return None

    def computed(
        self, group: ConsumerGroup, job: Job, config: ConsumerGroupConfig, event: Event
    ) -> Slices[None]:
        if self._jobs.get(group.group_id) is not job:
            return
        del self._jobs[group.group_id]
        if group.is_empty or job.version <= group.assignment_epoch:
            return
        # A static member may have come back under another id since the job began.
        known: dict[str, Target] = {}
        for member_id, target in job.result.items():
            held_by = group.static.get(job.instances.get(member_id, ""), member_id)
            if held_by in group.members:
                known[held_by] = target
        made = known, group.targets, job.version
        yield from append_assignment(event, group.group_id, *made)
        if group.epoch > job.version:
            arm_ms = event.now_ms + config.assignment_interval_ms
            event.arm(assignment_timer(group.group_id), arm_ms)

    def wait(self, group: ConsumerGroup, config: ConsumerGroupConfig, event: Event) -> None:
        """The epoch has changed without a heartbeat that could assign."""
        if group.group_id not in self._jobs:
            due_ms = due_at(group, config, event.now_ms)
            event.arm(assignment_timer(group.group_id), due_ms)

    def forget(self, group_id: str) -> None:
        self._jobs.pop(group_id, None)


def due_at(group: ConsumerGroup, config: ConsumerGroupConfig, now_ms: int) -> int:
    """At once if the clock of the broker before was ahead."""
    made_ms = group.assignment_timestamp_ms
    if not 0 < made_ms <= now_ms:
        return now_ms
    return max(made_ms + config.assignment_interval_ms, now_ms)


def preferred_assignor(counts: Counter[str], config: ConsumerGroupConfig) -> str:
    """The one that most members name. A member may come from another broker's log."""
    known = {name: count for name, count in counts.items() if name in ASSIGNORS and count > 0}
    return max(sorted(known), key=known.__getitem__, default=config.assignors[0])


def _job(
    group_id: str,
    epoch: int,
    assignor: str,
    members: Mapping[str, ConsumerGroupMember],
    targets: Mapping[str, Target],
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue],
    topics: Topics,
) -> Job:
    instances = {
        member_id: member.instance_id
        for member_id, member in members.items()
        if member.instance_id is not None
    }
    return Job(group_id, epoch, assign(assignor, members, targets, regexes, topics), instances)
