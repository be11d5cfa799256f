"""SyncGroup v0-v5. v3: static members. v5: the protocol is checked."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.classic_messages import SyncRequest, SyncResponse
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request

_INSTANCE_ID_FROM = 3
_PROTOCOL_FROM = 5


class SyncGroup:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Answer:
        asked, version = request.message, request.version

        def refuse(error: ErrorCode) -> Reply:
            return _encode(request, SyncResponse(error))

        if not asked.group_id:
            return refuse(ErrorCode.invalid_group_id)
        sync = SyncRequest(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id if version >= _INSTANCE_ID_FROM else None,
            asked.generation_id,
            asked.protocol_type if version >= _PROTOCOL_FROM else None,
            asked.protocol_name if version >= _PROTOCOL_FROM else None,
            {each.member_id: each.assignment for each in asked.assignments},
        )

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            shard.sync(sync, token, now_ms, decision)

        def encode(response: SyncResponse) -> Reply:
            return _encode(request, response)

        return ask_shard(self._groups, asked.group_id, decide, encode, refuse)


def _encode(request: Request, response: SyncResponse) -> Reply:
    return reply(
        request,
        {
            "throttle_time": 0,
            "error_code": response.error,
            "protocol_type": response.protocol_type,
            "protocol_name": response.protocol,
            "assignment": response.assignment,
        },
    )
