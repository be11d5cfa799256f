"""DescribeGroups v0-v6. v3: operations. v4: static members. v6: unknown groups are errors.

What clients keep in the group (subscriptions, assignments) shows only while it is stable.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.env.slices import Slices
from suwi.group.classic_group import ClassicGroup, ClassicMember, ClassicState
from suwi.group.group_coordinator_shard import GroupRuntime
from suwi.handlers.authorization import NOT_REQUESTED, authorized_operations
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import Sliced, SlicedResponse, each_once, sliced_handler
from suwi.model.errors import shortened
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType

_OPERATIONS_FROM: Final = 3
_NOT_FOUND_FROM: Final = 6
_NO_OPERATIONS: Final = {"authorized_operations": NOT_REQUESTED}


class _Described(NamedTuple):
    fields: dict[str, Any]
    members: Sequence[ClassicMember] = ()
    protocol: str = ""


@sliced_handler
def describe_groups(groups: GroupRuntime, request: Request) -> Sliced:
    asked, version = request.message, request.version
    asks = version >= _OPERATIONS_FROM and asked.include_authorized_operations
    response = SlicedResponse(request, arrays=("groups", "members"))
    for group_id in each_once(asked.groups):
        for _ in (None, *hashing(group_id or "")):
            if response.count():
                yield
        if group_id is None:
            continue
        if request.refuses(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            group, members, protocol = _refused(group_id, ErrorCode.group_authorization_failed)
        else:
            group, members, protocol = yield from _describe(groups, group_id, version)
        operations = authorized_operations(request, ResourceType.GROUP, group_id, asked=asks)
        if response.begin_topic(**{"authorized_operations": operations, **group}):
            yield
        for member in members:
            if response.add(_member(member, protocol)):
                yield
    return response.reply()


def _describe(groups: GroupRuntime, group_id: str, version: int) -> Slices[_Described]:
    try:
        shard = yield from groups.shard_to_read(group_id)
    except Exception as error:
        return _refused(group_id, coordinator_error(error))
    group = shard.machine.group(group_id)
    if isinstance(group, ClassicGroup):
        return _described(group)
    fields = _nothing(group_id)
    if version >= _NOT_FOUND_FROM:
        fields["error_code"] = ErrorCode.group_id_not_found
        fields["error_message"] = shortened(f"Group {group_id} not found.")
        fields |= _NO_OPERATIONS
    return _Described(fields)


def _refused(group_id: str, error: ErrorCode) -> _Described:
    refused = {"error_code": error, "group_state": ""}
    return _Described({**_nothing(group_id), **_NO_OPERATIONS, **refused})


def _nothing(group_id: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": ClassicState.DEAD.value,
        "protocol_type": "",
        "protocol_data": "",
    }


def _described(group: ClassicGroup) -> _Described:
    is_stable = group.state is ClassicState.STABLE
    protocol = group.protocol or "" if is_stable else ""
    fields = {
        **_nothing(group.group_id),
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
    }
    return _Described(fields, list(group.members.values()), protocol)


def _member(member: ClassicMember, protocol: str) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata_for(protocol) if protocol else b"",
        "member_assignment": member.assignment if protocol else b"",
    }
