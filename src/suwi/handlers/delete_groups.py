"""DeleteGroups v0-v2: groups without members, with all their offsets."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Token
from suwi.coordinator.requests import coordinator_error
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, SlicedItems
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
        # A slice at once: those of one shard are one append.
        deleted: dict[str, ErrorCode | asyncio.Future[ErrorCode]] = {}
        in_slice = 0
        for name in request.message.groups_names:
            if name not in deleted:
                deleted[name] = self._delete(name)
            in_slice += 1 + sum(1 for _ in hashing(name))
            if in_slice >= SLICE_PARTITIONS:
                in_slice = 0
                await request.next_slice()
        results = SlicedItems(request, ("results",))
        for number, (name, error) in enumerate(deleted.items(), 1):
            code = error if isinstance(error, ErrorCode) else await error
            results.add({"group_id": name, "error_code": code})
            if number % SLICE_PARTITIONS == 0:
                results.encode()
                await request.next_slice()
        return reply(request, {"throttle_time": 0, "results": results.take()})

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
