"""The overview: the state of the whole cluster, and what needs attention."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from suwi.admin.cluster_checks import check_status
from suwi.admin.cluster_health import HealthCriteria, problems, read_health
from suwi.admin.event_text import event_text
from suwi.admin.finding import ERROR, WARNING, Finding
from suwi.client.cluster_status import BrokerStatus, GroupStatus
from suwi.client.zookeeper_servers import ServerStatus
from suwi.console.clusters import TIMEOUT_S, ShownCluster
from suwi.console.page import Query

_LAG_MIN = 1000
_SHOWN_MAX = 20
_FINDINGS_S = 30
_CRITERIA = HealthCriteria(lag_min=_LAG_MIN, timeout_s=TIMEOUT_S)


class Event(NamedTuple):
    """An election that lost records, or may have."""

    at_ms: int
    kind: str
    partition: str | None
    text: str


class Overview(NamedTuple):
    cluster_id: str | None
    is_healthy: bool
    controller: int | None
    topics: int
    partitions: int
    under_replicated: int
    offline: int
    groups: int
    lag_min: int
    """From which lag on a group is behind."""
    groups_behind_count: int
    groups_behind: Sequence[GroupStatus]
    """The first of them."""
    brokers: Sequence[BrokerStatus]
    ensemble: Sequence[ServerStatus]
    findings: Sequence[Finding]
    """What needs attention, errors first; the first of `findings_count`."""
    findings_count: int
    events: Sequence[Event]
    """The last ones, the newest first."""
    unknown: Sequence[str]
    """What could not be read, and why."""
    command: str


async def read_overview(shown: ShownCluster, _: Query) -> Overview:
    status = await read_health(shown.client, shown.clock, _CRITERIA)
    found = problems(status, _CRITERIA)
    # The other checks ask for the settings of all topics: not every few seconds.
    findings = await shown.keep(
        ("findings", *found), _FINDINGS_S, partial(check_status, shown.client, status, _CRITERIA)
    )
    all_found = [*findings, *map(_behind, status.groups_behind[:_SHOWN_MAX])]
    first = sorted(all_found, key=lambda finding: finding.level != ERROR)
    return Overview(
        status.cluster_id,
        not found,
        status.controller,
        status.topics,
        status.partitions,
        len(status.under_replicated),
        len(status.offline),
        status.groups,
        _LAG_MIN,
        len(status.groups_behind),
        status.groups_behind[:_SHOWN_MAX],
        # Without what differs at each reading: a page is sent again only if it has changed.
        [replace(broker, clock_ahead_ms=None) for broker in status.brokers],
        status.ensemble,
        first[:_SHOWN_MAX],
        len(findings) + len(status.groups_behind),
        [
            Event(
                event["at_ms"],
                event["kind"],
                event["facts"].get("partition"),
                event_text(event["kind"], event["facts"]),
            )
            for event in reversed(status.events[-_SHOWN_MAX:])
        ],
        status.unknown,
        shown.command("status"),
    )


def _behind(group: GroupStatus) -> Finding:
    advice = "More members read more, up to one for each partition; its page says who reads what."
    if not group.state.startswith(("Stable", "PreparingRebalance", "CompletingRebalance")):
        advice = (
            f"Its state is {group.state}: nobody may be reading. Its page has its last rebalances."
        )
    problem = f"it is {group.lag:,} records behind"
    return Finding(WARNING, f"group {group.group}", problem, advice)
