"""Asks the shard that a key belongs to, for whoever awaits the response."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Slices, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.model.errors import error_of

# What an append to an internal topic runs into, and what a client is told: to try again here, or to
# look for the coordinator elsewhere.
_TOLD: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


Decide: TypeAlias = Callable[[Any, Token, int, Decision], Slices | None]
"""Gets the machine of a shard, the token of the reply, the time in milliseconds and the decision to
fill, now or in slices."""


def coordinator_error(error: Exception) -> ErrorCode:
    code, _ = error_of(error)
    return _TOLD.get(code, code)


class _Awaited(Token):
    __slots__ = ("response",)

    def __init__(self) -> None:
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def resolve(self, response: Any) -> None:
        if not self.response.done():
            self.response.set_result(response)

    def fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)
            self.response.exception()  # It is no bug if its connection has closed meanwhile.


async def ask(
    runtime: CoordinatorRuntime,
    key: str,
    decide: Decide,
    *,
    writes: bool = True,
) -> Any:
    """Let the shard of `key` decide. Raises what refuses it.

    Without `writes`, also where another broker may lead by now."""
    return await submit(runtime, key, decide, writes=writes)


def submit(
    runtime: CoordinatorRuntime,
    key: str,
    decide: Decide,
    *,
    writes: bool = True,
) -> asyncio.Future[Any]:
    """As `ask`, for whoever asks for several things before it awaits the first."""
    token = _Awaited()
    runtime.shard_of(key).submit(
        lambda machine, now_ms, decision: decide(machine, token, now_ms, decision),
        token,
        writes=writes,
        prolongs=not writes,
    )
    return token.response
