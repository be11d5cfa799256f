"""The place in the order of replies that a request holds until its reply is ready."""

import asyncio
from collections.abc import Awaitable

from suwi.net.answers import NoReply, Promise, Reply


class Slot:
    __slots__ = ("bytes_in_flight", "header", "reply", "wait")

    def __init__(
        self,
        header: bytes,
        bytes_in_flight: int,
        reply: Reply | NoReply | None,
        wait: Promise | asyncio.Future[Reply | NoReply] | None,
    ) -> None:
        self.header = header
        self.bytes_in_flight = bytes_in_flight
        self.reply = reply
        self.wait = wait


def as_future(
    loop: asyncio.AbstractEventLoop, reply: Awaitable[Reply | NoReply]
) -> asyncio.Future[Reply | NoReply]:
    if isinstance(reply, asyncio.Future):
        return reply
    return asyncio.ensure_future(reply, loop=loop)
