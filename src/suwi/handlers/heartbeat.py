"""Heartbeat v0-v4. v3: static members."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_requests import Committer
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request

_INSTANCE_ID_FROM = 3


class Heartbeat:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    def __call__(self, request: Request) -> Answer:
        asked = request.message

        def encode(error: ErrorCode) -> Reply:
            return reply(request, {"throttle_time": 0, "error_code": error})

        def refuse(error: ErrorCode) -> Reply:
            # Sessions begin anew when the group has been loaded: nobody need know of it.
            is_loading = error is ErrorCode.coordinator_load_in_progress
            return encode(ErrorCode.none if is_loading else error)

        if not asked.group_id:
            return encode(ErrorCode.invalid_group_id)
        who = Committer(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id if request.version >= _INSTANCE_ID_FROM else None,
            asked.generation_id,
        )

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> None:
            shard.heartbeat(who, token, now_ms, decision)

        return ask_shard(
            self._groups, asked.group_id, decide, encode, refuse, writes=False, prolongs=True
        )
