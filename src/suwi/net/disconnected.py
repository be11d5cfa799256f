"""Requests of a disconnected peer that were received before the disconnect.

As in Kafka, a producer with acks=0 may send and close: requests without a response are served, up
to the first request that has one. Other requests of a disconnected peer do not reach a handler.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from suwi.net.answers import (
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Reply,
    as_promise,
)
from suwi.wire.versions import ApiKey

_Connection = TypeVar("_Connection")

_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")


def without_reply(
    dispatch: Callable[[_Connection, memoryview], tuple[bytes, Answer]],
) -> Callable[[_Connection, memoryview], tuple[bytes, Answer]]:
    """Wrap a dispatch function for a peer that has disconnected."""

    def serve(connection: _Connection, frame: memoryview) -> tuple[bytes, Answer]:
        if frame[:2] != _PRODUCE:
            raise CloseConnection("peer disconnected")
        header, answer = dispatch(connection, frame)
        if isinstance(answer, Exclusive) and answer.until is not None:
            return header, Exclusive(_after_effects(answer.reply, answer.until))
        if not isinstance(answer, NoReply):
            _drop(answer)
            raise CloseConnection("peer disconnected")
        return header, answer

    return serve


async def _after_effects(
    reply: Awaitable[Reply | NoReply], until: "asyncio.Future[None]"
) -> NoReply:
    """Wait for the side effects of a request. If it has no response, it is complete then."""
    replying = asyncio.ensure_future(reply)  # owner: this function
    ends: list[asyncio.Future[Any]] = [replying, until]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if replying.done() and isinstance(answer := replying.result(), NoReply):
            return answer
        raise CloseConnection("peer disconnected")
    finally:
        replying.cancel()


def _drop(answer: Reply | Later | Exclusive) -> None:
    if isinstance(answer, Reply):
        answer.discard()
    else:
        as_promise(asyncio.get_running_loop(), answer.reply).cancel()
