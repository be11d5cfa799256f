"""DescribeGroups v0-v6. v3: operations. v4: static members. v6: unknown groups are errors.

What clients keep in the group (subscriptions, assignments) shows only while it is stable.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.classic_group import ClassicGroup, ClassicMember, ClassicState
from suwi.handlers.authorized_operations import on_group
from suwi.handlers.coordinator_requests import coordinator_error
from suwi.handlers.errors import reply, shortened
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_OPERATIONS_FROM: Final = 3
_NOT_FOUND_FROM: Final = 6


class DescribeGroups:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Reply:
        asked = request.message
        operations = on_group(
            request.version >= _OPERATIONS_FROM and asked.include_authorized_operations
        )
        groups = [
            {"authorized_operations": operations, **self._describe(group_id, request.version)}
            for group_id in asked.groups
        ]
        return reply(request, {"throttle_time": 0, "groups": groups})

    def _describe(self, group_id: str, version: int) -> dict[str, Any]:
        try:
            shard = self._groups.shard_to_read(group_id)
        except Exception as error:
            return _refused(group_id, coordinator_error(error))
        group = shard.machine.group(group_id)
        if isinstance(group, ClassicGroup):
            return _described(group)
        if version >= _NOT_FOUND_FROM:
            fields = _refused(group_id, ErrorCode.group_id_not_found)
            return {
                **fields,
                "group_state": ClassicState.DEAD.value,
                "error_message": shortened(f"Group {group_id} not found."),
            }
        return _nothing(group_id)


def _refused(group_id: str, error: ErrorCode) -> dict[str, Any]:
    return {
        **_nothing(group_id),
        "error_code": error,
        "group_state": "",
        "authorized_operations": on_group(asked=False),
    }


def _nothing(group_id: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": ClassicState.DEAD.value,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }


def _described(group: ClassicGroup) -> dict[str, Any]:
    is_stable = group.state is ClassicState.STABLE
    protocol = group.protocol or "" if is_stable else ""
    return {
        **_nothing(group.group_id),
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
        "members": [_member(member, protocol) for member in group.members.values()],
    }


def _member(member: ClassicMember, protocol: str) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata_for(protocol) if protocol else b"",
        "member_assignment": member.assignment if protocol else b"",
    }
