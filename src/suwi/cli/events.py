"""The work of `suwi cluster events`: what the cluster remembers, above all lost records."""

import json as json_format
from collections.abc import Mapping
from typing import Any

from suwi.cli.options import Target
from suwi.cli.output import Failure, document, say, table, time_text
from suwi.cli.session import run
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.controller.events import LOSS_UNKNOWN, RECORDS_LOST, SUSPECT_ELECTION, UNCLEAN_ELECTION
from suwi.wire.versions import ApiKey

_ANSWER_S = 5.0


def show(target: Target, *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        kept = await _ask(cluster)
        if json:
            document(kept)
        elif kept:
            rows = [
                (
                    time_text(event["at_ms"]),
                    event["kind"],
                    event["facts"].get("partition", "-"),
                    told(event["kind"], event["facts"]),
                )
                for event in kept
            ]
            table(("Time", "Event", "Partition", "What"), rows)
        else:
            say("no election has cost records")

    run(target, work)


async def _ask(cluster: Cluster) -> list[dict[str, Any]]:
    link = await cluster.any_link()
    try:
        answer = await link.send(ApiKey.DESCRIBE_EVENTS, 0, [b"{}"], timeout_s=_ANSWER_S)
    except ConnectionLost as error:
        raise Failure(f"{error}; only Suwi's brokers keep events") from None
    return list(json_format.loads(bytes(answer))["events"])


def told(kind: str, facts: Mapping[str, Any]) -> str:
    """An event in words."""
    if kind == RECORDS_LOST:
        given_up = ", ".join(
            f"{_records(lost['first'], lost['end'])} of epoch {lost['epoch']}"
            for lost in facts["ranges"]
        )
        return f"broker {facts['broker']} gave up {given_up}; {_certainty(facts)}"
    if kind == UNCLEAN_ELECTION:
        lost = facts["lost_at_least"]
        cost = f"what was lost, if anything, is {LOSS_UNKNOWN}"
        if lost:
            cost = f"lost at least {_records(*lost)}"
        return f"broker {facts['leader']} leads in epoch {facts['epoch']}; {cost}"
    if kind == SUSPECT_ELECTION:
        found = f"broker {facts['leader']} leads in epoch {facts['epoch']}; "
        if facts["log_end"] is None:
            return found + "what it had synced is not known"
        return found + f"synced up to {facts['recovery_point']}, its log ends at {facts['log_end']}"
    return json_format.dumps(facts)


def _certainty(facts: Mapping[str, Any]) -> str:
    first, end = facts["ranges"][0]["first"], facts["ranges"][-1]["end"]
    committed_end = facts["committed_below"]
    if committed_end >= end:
        return "all of it was committed"
    if committed_end <= first:
        return "any of it may have been committed"
    return f"{_records(first, committed_end)} was committed, the rest may have been"


def _records(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"
