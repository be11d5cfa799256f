"""LeaveGroup v0-v5. v3: several members at once, also by their instance id. v5: reason."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Slices, Token
from suwi.coordinator.requests import Decide, ask, coordinator_error
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.classic_messages import LeavingMember
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, SlicedItems
from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.dispatch import Request

_SEVERAL_FROM = 3
_REASON_FROM = 5
_REASON_CHARACTERS_MAX = 255


class LeaveGroup:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Answer:
        asked = request.message

        def refuse(error: ErrorCode) -> Reply:
            return reply(request, {"throttle_time": 0, "error_code": error, "members": ()})

        def encode(errors: list[ErrorCode]) -> Reply:
            if request.version < _SEVERAL_FROM:
                return refuse(errors[0])
            members = list(map(_left, leaving, errors))
            fields = {"throttle_time": 0, "error_code": ErrorCode.none, "members": members}
            return reply(request, fields)

        if not asked.group_id:
            return refuse(ErrorCode.invalid_group_id)
        if request.version >= _SEVERAL_FROM and len(asked.members) > SLICE_PARTITIONS:
            return Exclusive(self._remove_many(request))

        leaving = _leaving(request)
        decide = _deciding(asked.group_id, leaving)
        return ask_shard(self._groups, asked.group_id, decide, encode, refuse)

    async def _remove_many(self, request: Request) -> Reply:
        """One event, so that a retry finds all of them gone, or none."""
        asked, members = request.message, SlicedItems(request, ("members",))
        leaving: list[LeavingMember] = []
        for start in range(0, len(asked.members), SLICE_PARTITIONS):
            leaving += _leaving(request, start)
            await request.next_slice()
        fields: dict[str, Any]
        try:
            errors = await ask(self._groups, asked.group_id, _deciding(asked.group_id, leaving))
        except Exception as error:
            fields = {"error_code": coordinator_error(error), "members": ()}
        else:
            for left in map(_left, leaving, errors):
                await members.put(left)
            fields = {"error_code": ErrorCode.none, "members": members.take()}
        return reply(request, {"throttle_time": 0, **fields})


def _deciding(group_id: str, leaving: list[LeavingMember]) -> Decide:
    def decide(
        shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
    ) -> Slices:
        return shard.leave(group_id, leaving, token, now_ms, decision)

    return decide


def _left(member: LeavingMember, error: ErrorCode) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "error_code": error,
    }


def _leaving(request: Request, start: int = 0) -> list[LeavingMember]:
    """At most `SLICE_PARTITIONS` members, from `start` on."""
    asked = request.message
    if request.version < _SEVERAL_FROM:
        return [LeavingMember(asked.member_id, None)]
    return [
        LeavingMember(
            member.member_id,
            member.group_instance_id,
            (member.reason or "")[:_REASON_CHARACTERS_MAX]
            if request.version >= _REASON_FROM
            else "",
        )
        for member in asked.members[start : start + SLICE_PARTITIONS]
    ]
