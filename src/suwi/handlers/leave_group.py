"""LeaveGroup v0-v5. v3: several members at once, also by their instance id. v5: reason."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.classic_messages import LeavingMember
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request

_SEVERAL_FROM = 3
_REASON_FROM = 5
_REASON_CHARACTERS_MAX = 255


class LeaveGroup:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Answer:
        asked = request.message
        leaving = _leaving(request)

        def refuse(error: ErrorCode) -> Reply:
            return reply(request, {"throttle_time": 0, "error_code": error, "members": ()})

        def encode(errors: list[ErrorCode]) -> Reply:
            if request.version < _SEVERAL_FROM:
                return refuse(errors[0])
            members = [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "error_code": error,
                }
                for each, error in zip(leaving, errors, strict=True)
            ]
            fields = {"throttle_time": 0, "error_code": ErrorCode.none, "members": members}
            return reply(request, fields)

        if not asked.group_id:
            return refuse(ErrorCode.invalid_group_id)

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            shard.leave(asked.group_id, leaving, token, now_ms, decision)

        return ask_shard(self._groups, asked.group_id, decide, encode, refuse)


def _leaving(request: Request) -> list[LeavingMember]:
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
        for member in asked.members
    ]
