"""Recorded events of a cluster as text: which records elections have lost, or may have lost."""

import json
from collections.abc import Mapping
from typing import Any

from suwi.metadata.cluster_events import (
    LOSS_UNKNOWN,
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
)


def event_text(kind: str, facts: Mapping[str, Any]) -> str:
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
    return json.dumps(facts)


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
