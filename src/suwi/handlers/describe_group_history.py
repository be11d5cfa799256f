"""DescribeGroupHistory v0, Suwi's own and never advertised: why a group rebalanced.

Request and response are JSON: `{"group": "a"}`, and
`{"error": 0, "exists": true, "moves": […], "rebalances": […]}`, the oldest first. Asked of the
group's coordinator; the error is Kafka's code where this broker is not, or not yet. A move says
since when this broker coordinates the group: it is no rebalance. The response is made in slices:
a rebalance may have thousands of members.
"""

from typing import Any

from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import Activation
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.group_coordinator_shard import GroupCoordinatorShard, GroupRuntime
from suwi.group.history import History, Rebalance
from suwi.handlers.json_body import json_reply, long_json_reply, read_json
from suwi.net.answers import Answer, CloseConnection, Exclusive
from suwi.net.dispatch import Request


def describe_group_history(groups: GroupRuntime, history: History, request: Request) -> Answer:
    group_id = read_json(request).get("group")
    if not isinstance(group_id, str):
        raise CloseConnection("DescribeGroupHistory: group must be a string")
    try:
        shard = groups.shard_of(group_id)
    except Exception as error:
        refused = {"error": int(coordinator_error(error)), "exists": False}
        return json_reply({**refused, "moves": [], "rebalances": []})
    rebalances = history.of(group_id)
    # If none was dropped, and the first rebalance is not that of a new group, the group was
    # elsewhere before.
    is_complete = len(rebalances) < history.per_group_max
    moves = _moves(shard, group_id, rebalances, is_complete)
    under_way = shard.machine.rebalance_under_way(group_id)
    if under_way is not None:
        rebalances.append(under_way)
    exists = shard.machine.group(group_id) is not None
    described, moved = map(_fields, rebalances), [move._asdict() for move in moves]
    return Exclusive(
        long_json_reply({"rebalances": described}, error=0, exists=exists, moves=moved)
    )


def _moves(
    shard: Shard[GroupCoordinatorShard],
    group_id: str,
    rebalances: list[Rebalance],
    is_complete: bool,
) -> list[Activation]:
    """The moves since the group exists."""
    first = rebalances[0] if rebalances else None
    if first is not None and first.from_generation > 0 and is_complete:
        return list(shard.activations)
    since_ms = None if first is None else first.began_ms
    if first is None:
        group = shard.machine.group(group_id)
        if isinstance(group, ConsumerGroup):
            since_ms = group.assignment_timestamp_ms
        elif group is not None and group.persisted is not None:
            since_ms = group.state_since_ms
    return [move for move in shard.activations if since_ms is not None and move.at_ms > since_ms]


def _fields(rebalance: Rebalance) -> dict[str, Any]:
    cause = rebalance.cause
    has_ended = rebalance.ended_ms >= 0
    return {
        "trigger": cause.trigger.value,
        "member": cause.member_id,
        "client_id": cause.client_id,
        "host": cause.client_host,
        "reason": cause.reason,
        "from_generation": rebalance.from_generation,
        "to_generation": rebalance.to_generation if has_ended else None,
        "began_ms": rebalance.began_ms,
        "ended_ms": rebalance.ended_ms if has_ended else None,
        "pause_ms": rebalance.pause_ms if has_ended else None,
        "members": rebalance.members,
        "stood_still_ms": rebalance.stood_still_ms or {},
    }
