"""ListGroups v0-v5. v4: filter by state. v5: filter by type. Of what this broker coordinates."""

from collections.abc import Iterator
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.group.consumer_group import ConsumerGroup
from suwi.group.group_coordinator_shard import GroupRuntime
from suwi.handlers.slices import list_in_slices, reply_in_slices
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType

_STATES_FROM: Final = 4
_TYPES_FROM: Final = 5
_CLASSIC: Final = "classic"
_CONSUMER: Final = "consumer"


def list_groups(groups: GroupRuntime, request: Request) -> Answer:
    error = ErrorCode.none
    if groups.is_loading:
        error = ErrorCode.coordinator_load_in_progress
    return reply_in_slices(
        request, list_in_slices(request, "groups", _list(groups, request), {"error_code": error})
    )


def _list(groups: GroupRuntime, request: Request) -> Iterator[dict[str, Any] | None]:
    asked, version = request.message, request.version
    states: set[str] = set()
    for state in asked.states_filter if version >= _STATES_FROM else ():
        states.add(state.lower())
        yield None
    types: set[str] = set()
    for kind in asked.types_filter if version >= _TYPES_FROM else ():
        types.add(kind.lower())
        yield None
    sees_all = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    machines = [shard.machine for shard in groups.active()]
    for machine in machines:
        for group_id in machine.groups.ids():
            group = machine.group(group_id)
            if group is None:
                yield None  # deleted since the last slice
                continue
            if isinstance(group, ConsumerGroup):
                kind = protocol_type = _CONSUMER
            else:
                kind, protocol_type = _CLASSIC, group.protocol_type or ""
            is_left_out = (
                (states and group.state.value.lower() not in states)
                or (types and kind not in types)
                or not (sees_all or request.may(Operation.DESCRIBE, ResourceType.GROUP, group_id))
            )
            yield (
                None
                if is_left_out
                else {
                    "group_id": group_id,
                    "protocol_type": protocol_type,
                    "group_state": group.state.value,
                    "group_type": kind,
                }
            )
