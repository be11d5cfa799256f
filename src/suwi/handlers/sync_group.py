"""SyncGroup v0-v5. v3: static members. v5: the protocol is checked."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.group.classic_group import SyncRequest, SyncResponse
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_INSTANCE_ID_FROM = 3
_PROTOCOL_FROM = 5


class SyncGroup(CoordinatorHandler[GroupCoordinatorShard, SyncResponse]):
    def call_of(self, request: Request) -> GroupCall | ErrorCode:
        asked, version = request.message, request.version
        if not asked.group_id:
            return ErrorCode.invalid_group_id
        sync = SyncRequest(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id if version >= _INSTANCE_ID_FROM else None,
            asked.generation_id,
            asked.protocol_type if version >= _PROTOCOL_FROM else None,
            asked.protocol_name if version >= _PROTOCOL_FROM else None,
            {each.member_id: each.assignment for each in asked.assignments},
        )
        return Call(GroupCoordinatorShard.sync, sync, asked.group_id)

    def error_response(self, request: Request, error: ErrorCode) -> SyncResponse:
        return SyncResponse(error)

    def encode(self, request: Request, response: SyncResponse) -> Reply:
        return reply(
            request,
            {
                "error_code": response.error,
                "protocol_type": response.protocol_type,
                "protocol_name": response.protocol,
                "assignment": response.assignment,
            },
        )
