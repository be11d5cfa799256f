"""ListGroups v0-v5. v4: filter by state. v5: filter by type. Of what this broker coordinates."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.consumer_group import ConsumerGroup
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_STATES_FROM: Final = 4
_TYPES_FROM: Final = 5
_CLASSIC: Final = "classic"
_CONSUMER: Final = "consumer"


class ListGroups:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Reply:
        asked, version = request.message, request.version
        states = {state.lower() for state in asked.states_filter} if version >= _STATES_FROM else ()
        types = {kind.lower() for kind in asked.types_filter} if version >= _TYPES_FROM else ()
        listed: list[dict[str, Any]] = []
        for shard in self._groups.active():
            for group_id in shard.machine.groups.ids():
                group = shard.machine.group(group_id)
                is_consumer = isinstance(group, ConsumerGroup)
                kind = _CONSUMER if is_consumer else _CLASSIC
                if states and group.state.value.lower() not in states:
                    continue
                if types and kind not in types:
                    continue
                listed.append(
                    {
                        "group_id": group_id,
                        "protocol_type": kind if is_consumer else group.protocol_type or "",
                        "group_state": group.state.value,
                        "group_type": kind,
                    }
                )
        error = ErrorCode.none
        if self._groups.is_loading:
            error = ErrorCode.coordinator_load_in_progress
        return reply(request, {"throttle_time": 0, "error_code": error, "groups": listed})
