"""DescribeGroupHistory v0, Suwi's own and never advertised: why a group rebalanced.

Request and response are JSON: `{"group": "a"}`, and
`{"error": 0, "exists": true, "moves": […], "rebalances": […]}`, the oldest first. Asked of the
group's coordinator; the error is Kafka's code where this broker is not, or not yet. A move says
since when this broker coordinates the group: it is no rebalance. The response is made in slices:
a rebalance may have thousands of members.
"""

import asyncio
import json
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import Activation
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.group_coordinator_shard import GroupCoordinatorShard, GroupRuntime
from suwi.group.history import History, Rebalance
from suwi.handlers.json_body import read_json
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request

_SLICE_S: Final = 0.002


class DescribeGroupHistory:
    def __init__(self, groups: GroupRuntime, history: History) -> None:
        self._groups = groups
        self._history = history

    def __call__(self, request: Request) -> Answer:
        group_id = read_json(request).get("group")
        if not isinstance(group_id, str):
            raise CloseConnection("DescribeGroupHistory: group must be a string")
        try:
            shard = self._groups.shard_of(group_id)
        except Exception as error:
            return _reply(coordinator_error(error), False, [], [])
        rebalances = self._history.of(group_id)
        # If none was dropped, and the first rebalance is not that of a new group, the group was
        # elsewhere before.
        is_complete = len(rebalances) < self._history.per_group_max
        moves = _moves(shard, group_id, rebalances, is_complete)
        under_way = shard.machine.rebalance_under_way(group_id)
        if under_way is not None:
            rebalances.append(under_way)
        exists = shard.machine.group(group_id) is not None
        return Exclusive(_describe(exists, rebalances, moves))


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


async def _describe(exists: bool, rebalances: list[Rebalance], moves: list[Activation]) -> Reply:
    loop = asyncio.get_running_loop()
    texts: list[str] = []
    slice_ends_s = loop.time() + _SLICE_S
    for rebalance in rebalances:
        if loop.time() > slice_ends_s:
            await asyncio.sleep(0)
            slice_ends_s = loop.time() + _SLICE_S
        texts.append(json.dumps(_fields(rebalance)))
    return _reply(ErrorCode.none, exists, texts, moves)


def _reply(error: ErrorCode, exists: bool, texts: list[str], moves: list[Activation]) -> Reply:
    head = json.dumps(
        {"error": int(error), "exists": exists, "moves": [move._asdict() for move in moves]}
    )
    return Reply([f'{head[:-1]}, "rebalances": ['.encode(), ", ".join(texts).encode(), b"]}"])


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
