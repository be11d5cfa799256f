"""Implementation of `suwi cluster events`: the recorded events, above all lost records."""

import json as json_format
from collections.abc import Mapping
from typing import Any

from suwi.cli.options import Target
from suwi.cli.output import Failure, document, say, table, time_text
from suwi.cli.session import run
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import describe_events
from suwi.client.connection import ConnectionLost
from suwi.metadata.cluster_events import (
    LOSS_UNKNOWN,
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
)

COLUMNS = ("Time", "Event", "Partition", "Details")


def show(target: Target, *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        try:
            recorded = await describe_events(cluster)
        except ConnectionLost as error:
            raise Failure(f"{error}; only Suwi's brokers record events") from None
        if json:
            document(recorded)
        elif recorded:
            table(COLUMNS, map(row, recorded))
        else:
            say("no election has lost records")

    run(target, work)


def row(event: Mapping[str, Any]) -> tuple[object, ...]:
    kind, facts = event["kind"], event["facts"]
    return time_text(event["at_ms"]), kind, facts.get("partition", "-"), event_text(kind, facts)


def event_text(kind: str, facts: Mapping[str, Any]) -> str:
    """An event as text."""
    if kind == RECORDS_LOST:
        lost_ranges = ", ".join(
            f"{_records(lost['first'], lost['end'])} of epoch {lost['epoch']}"
            for lost in facts["ranges"]
        )
        return f"broker {facts['broker']} lost {lost_ranges}; {_certainty(facts)}"
    if kind == UNCLEAN_ELECTION:
        lost = facts["lost_at_least"]
        cost = f"lost records, if any: {LOSS_UNKNOWN}"
        if lost:
            cost = f"lost at least {_records(*lost)}"
        return f"broker {facts['leader']} leads in epoch {facts['epoch']}; {cost}"
    if kind == SUSPECT_ELECTION:
        found = f"broker {facts['leader']} leads in epoch {facts['epoch']}; "
        if facts["log_end"] is None:
            return found + "its synced offset is unknown"
        return found + f"synced up to {facts['recovery_point']}, its log ends at {facts['log_end']}"
    return json_format.dumps(facts)


def _certainty(facts: Mapping[str, Any]) -> str:
    first, end = facts["ranges"][0]["first"], facts["ranges"][-1]["end"]
    committed_end = facts["committed_below"]
    if committed_end >= end:
        return "all were committed"
    if committed_end <= first:
        return "any may have been committed"
    return f"{_records(first, committed_end)} committed, the others may have been"


def _records(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"
