"""LeaveGroup v0-v5. v3: several members at once, also by their instance id. v5: reason.

However many members leave, it is one event: a retry finds all of them gone, or none.
"""

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.env.slices import Slices, run_to_end
from suwi.group.classic_group import LeaveRequest, LeavingMember
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, list_in_slices
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_SEVERAL_FROM = 3
_REASON_FROM = 5
_REASON_CHARACTERS_MAX = 255


class LeaveGroup(CoordinatorHandler[GroupCoordinatorShard, list[ErrorCode] | ErrorCode]):
    def call_of(self, request: Request) -> GroupCall | Slices[GroupCall] | ErrorCode:
        asked = request.message
        if not asked.group_id:
            return ErrorCode.invalid_group_id
        if request.version < _SEVERAL_FROM:
            return _leave(asked.group_id, [LeavingMember(asked.member_id, None)])
        calling = _leave_several(request)
        return calling if len(asked.members) > SLICE_PARTITIONS else run_to_end(calling)

    def error_response(self, request: Request, error: ErrorCode) -> ErrorCode:
        return error

    def encode(self, request: Request, response: list[ErrorCode] | ErrorCode) -> Reply | Sliced:
        if request.version < _SEVERAL_FROM and not isinstance(response, ErrorCode):
            response = response[0]
        if isinstance(response, ErrorCode):
            return reply(request, {"error_code": response, "members": ()})
        left = (
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": error,
            }
            for member, error in zip(request.message.members, response, strict=True)
        )
        return list_in_slices(request, "members", left, {"error_code": ErrorCode.none})


def _leave(group_id: str, members: list[LeavingMember]) -> GroupCall:
    return Call(GroupCoordinatorShard.leave, LeaveRequest(group_id, members), group_id)


def _leave_several(request: Request) -> Slices[GroupCall]:
    leaving: list[LeavingMember] = []
    for number, member in enumerate(request.message.members, 1):
        reason = member.reason or "" if request.version >= _REASON_FROM else ""
        leaving.append(
            LeavingMember(
                member.member_id, member.group_instance_id, reason[:_REASON_CHARACTERS_MAX]
            )
        )
        if number % SLICE_PARTITIONS == 0:
            yield
    return _leave(request.message.group_id, leaving)
