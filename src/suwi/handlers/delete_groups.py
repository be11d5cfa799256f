"""DeleteGroups v0-v2: groups without members, with all their offsets."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.coordinator_requests import coordinator_error
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class _FutureToken(Token):
    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def resolve(self, response: ErrorCode) -> None:
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        self.resolve(coordinator_error(error))


class DeleteGroups:
    def __init__(self, groups: CoordinatorRuntime) -> None:
        self._groups = groups

    async def __call__(self, request: Request) -> Reply:
        # All at once: those of one shard are one append.
        names = dict.fromkeys(request.message.groups_names)
        deleted = [(name, self._delete(name)) for name in names]
        results = [
            {"group_id": name, "error_code": error if isinstance(error, ErrorCode) else await error}
            for name, error in deleted
        ]
        return reply(request, {"throttle_time": 0, "results": results})

    def _delete(self, group_id: str) -> "ErrorCode | asyncio.Future[ErrorCode]":
        token = _FutureToken()
        try:
            self._groups.shard_of(group_id).submit(
                lambda shard, now_ms, decision: shard.delete_group(group_id, token, decision),
                token,
            )
        except Exception as error:
            return coordinator_error(error)
        return token.future
