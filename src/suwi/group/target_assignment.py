"""The target assignment of a consumer group: how it is computed, and when there is a new one.

`Job` is work that may take longer than one iteration of the loop: the coordinator begins it, and
timers step it. It works on the members and the image of its beginning, which do not change.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from suwi.coordinator.event import Event
from suwi.coordinator.topics import Topic, Topics
from suwi.env.slices import Pace, Slices
from suwi.group.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
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
from suwi.model.ids import TopicId

_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64


class Job:
    """Work in slices. Call `step` until it returns true, then take `result`."""

    __slots__ = ("_steps", "group_id", "instances", "is_done", "result", "version")

    def __init__(
        self,
        group_id: str,
        version: int,
        steps: Slices[Any],
        instances: Mapping[str, str] | None = None,
    ) -> None:
        """`version`: the group epoch of an assignment, or the version of the image for regular
        expressions. `instances`: the instance ids of members when it began."""
        self.group_id = group_id
        self.version = version
        self.instances = instances or {}
        self.is_done = False
        self.result: Any = None
        self._steps = steps

    def step(self) -> bool:
        """Whether it is done."""
        if not self.is_done:
            try:
                next(self._steps)
            except StopIteration as end:
                self.result, self.is_done = end.value, True
        return self.is_done

    def running(self) -> Slices[None]:
        """Runs the whole job, in slices of the event that needs it."""
        while not self.step():
            yield


@lru_cache(maxsize=65_536)
def _topic_hash(topic: Topic) -> int:
    text = f"{topic.topic_id.hex}:{topic.partitions}:{topic.name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def metadata_hash(names: Iterable[str], topics: Topics) -> Slices[int]:
    """A number that changes if one of these topics is created, deleted, created again or given
    partitions. The order of the names does not matter. It is 0 if none of the topics exists."""
    pace, value = Pace(), 0
    for name in frozenset(names):
        topic = topics.by_name(name)
        if topic is not None:
            value += _topic_hash(topic)
        if pace.is_over(3):
            yield
    value %= _MODULUS
    return value - _MODULUS if value >= _SIGN else value


def topic_ids(names: Iterable[str], topics: Topics) -> Slices[frozenset[TopicId]]:
    pace, found = Pace(), set()
    for name in names:
        topic = topics.by_name(name)
        if topic is not None:
            found.add(topic.topic_id)
        if pace.is_over(2):
            yield
    return frozenset(found)


def assign(
    assignor: str,
    members: Mapping[str, ConsumerGroupMember],
    targets: Mapping[str, Target],
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue],
    topics: Topics,
) -> Slices[Assignment]:
    known: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    specs: dict[str, MemberSpec] = {}
    pace = Pace()
    for member in members.values():
        names, regex = subscription = (member.topic_names, member.topic_regex)
        ids = known.get(subscription)
        if ids is None:
            resolved = regexes.get(regex or "")
            matched = resolved.topics if resolved is not None else ()
            ids = known[subscription] = yield from topic_ids((*names, *matched), topics)
        specs[member.member_id] = MemberSpec(
            member.instance_id, ids, targets.get(member.member_id, {})
        )
        if pace.is_over(3):
            yield
    partitions: dict[TopicId, int] = {}
    for ids in known.values():
        for topic_id in ids:
            topic = topics.by_id(topic_id)
            partitions[topic_id] = topic.partitions if topic is not None else 0
            if pace.is_over(2):
                yield
    return (yield from ASSIGNORS[assignor](GroupSpec(specs, partitions)))


# -- when a group gets a new target ----------------------------------------------------------------


class Targets:
    """Makes the target assignments: at once, after the assignment interval, or in slices by a job.

    `assign` is called when a member has changed, `due` when the timer fires, `computed` when a job
    that `due` has returned is done. A group has one job at a time; changes that come meanwhile are
    in the next one.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def assign(self, draft: Draft, config: ConsumerGroupConfig, event: Event) -> Slices[None]:
        """Assign now, if the interval is over and it does not take long. The first target of a
        group never waits."""
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
        """Returns the job, if it takes longer than one slice."""
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
        """The epoch was raised without a heartbeat: a timer will assign."""
        if group.group_id not in self._jobs:
            due_ms = due_at(group, config, event.now_ms)
            event.arm(assignment_timer(group.group_id), due_ms)

    def forget(self, group_id: str) -> None:
        self._jobs.pop(group_id, None)


def due_at(group: ConsumerGroup, config: ConsumerGroupConfig, now_ms: int) -> int:
    """When the next target may be made. At once if the clock of the previous coordinator was
    ahead."""
    made_ms = group.assignment_timestamp_ms
    if not 0 < made_ms <= now_ms:
        return now_ms
    return max(made_ms + config.assignment_interval_ms, now_ms)


def preferred_assignor(counts: Counter[str], config: ConsumerGroupConfig) -> str:
    """The assignor that most members name. Names that this broker does not know are ignored."""
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
