"""Heartbeat v0-v4. v3: static members."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.group.classic_group import Committer
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_INSTANCE_ID_FROM = 3


class Heartbeat(CoordinatorHandler[GroupCoordinatorShard, ErrorCode]):
    def call_of(self, request: Request) -> GroupCall | ErrorCode:
        asked = request.message
        if not asked.group_id:
            return ErrorCode.invalid_group_id
        who = Committer(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id if request.version >= _INSTANCE_ID_FROM else None,
            asked.generation_id,
        )
        return Call(
            GroupCoordinatorShard.heartbeat, who, asked.group_id, writes=False, prolongs=True
        )

    def error_response(self, request: Request, error: ErrorCode) -> ErrorCode:
        # Sessions begin anew when the group has been loaded, so the member need not know of it.
        is_loading = error is ErrorCode.coordinator_load_in_progress
        return ErrorCode.none if is_loading else error

    def encode(self, request: Request, response: ErrorCode) -> Reply:
        return reply(request, {"error_code": response})
