"""What the regular expressions of consumer groups match, and when that is looked up again.

An expression is resolved when its first subscriber brings it, when topics come or go, and each
refresh interval. All of a group are resolved together, so that they cost one rebalance.
"""

from collections.abc import Sequence
from typing import Final

from suwi.coordinator.event import Event
from suwi.coordinator.topics import Topics
from suwi.group.consumer_draft import Draft
from suwi.group.consumer_group import ConsumerGroup, ConsumerGroupConfig, append_regex, regex_timer
from suwi.group.consumer_group_records import ConsumerGroupRegularExpressionValue
from suwi.group.regular_expressions import resolve
from suwi.group.target_assignment import Job

_BATCH_INTERVAL_MS: Final = 10_000
"""The least time between two resolutions, however often topics change."""


class Regexes:
    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._refreshed_ms: dict[str, int] = {}

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
            job = _job(group_id, [after], event.topics)
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

    def due(self, group: ConsumerGroup, topics: Topics) -> Job | None:
        """Returns the job, which may be done already."""
        job = self._jobs.get(group.group_id)
        if job is None and group.regex_subscribers:
            job = _job(group.group_id, sorted(group.regex_subscribers), topics)
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


def _job(group_id: str, regexes: Sequence[str], topics: Topics) -> Job:
    return Job(group_id, topics.version, resolve(regexes, topics.names()))
