"""The place in the order of replies that a request holds until its reply is ready."""

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial

from suwi.net.answers import CloseConnection, NoReply, Promise, Reply

log = logging.getLogger(__name__)


class Slot:
    __slots__ = ("bytes_in_flight", "header", "reply", "wait")

    def __init__(
        self,
        header: bytes,
        bytes_in_flight: int,
        reply: Reply | NoReply | None,
        wait: Promise | None,
    ) -> None:
        self.header = header
        self.bytes_in_flight = bytes_in_flight
        self.reply = reply
        self.wait = wait


def as_promise(loop: asyncio.AbstractEventLoop, reply: Awaitable[Reply | NoReply]) -> Promise:
    """What a handler left to be awaited, whatever kind it is, as a promise."""
    if isinstance(reply, Promise):
        return reply
    future = asyncio.ensure_future(reply, loop=loop)  # owner: the connection
    promise = Promise(future.cancel)
    future.add_done_callback(partial(_pass_on, promise))
    return promise


def _pass_on(promise: Promise, future: asyncio.Future[Reply | NoReply]) -> None:
    if future.cancelled():
        promise.keep(CloseConnection("the wait for a reply was cancelled"))
        return
    error = future.exception()
    if error is None:
        promise.keep(future.result())
    elif promise.is_cancelled:
        log.error("request failed after its client had gone", exc_info=error)
    else:
        assert isinstance(error, Exception)
        promise.keep(error)
