"""What a handler may answer. Effects happen inside the handler; only replies may wait."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

from suwi.env import FileRegion

log = logging.getLogger(__name__)

Chunk: TypeAlias = bytes | bytearray | memoryview | FileRegion


class CloseConnection(Exception):
    """The peer broke the protocol; its connection is closed, nothing else suffers."""


@final
class Reply:
    """The body of a response without its header, as pieces that are sent one after another.

    The pieces must stay unchanged until `release` is called, which happens exactly once: when
    all of them have left, or when they never will because the connection is gone.
    """

    __slots__ = ("chunks", "release")

    def __init__(self, chunks: Sequence[Chunk], release: Callable[[], None] | None = None) -> None:
        self.chunks = chunks
        self.release = release

    def memory_bytes(self) -> int:
        """What the reply holds in memory while it waits; file regions stay on disk."""
        return sum(len(chunk) for chunk in self.chunks if not isinstance(chunk, FileRegion))

    def discard(self) -> None:
        """It will not be sent."""
        if self.release is not None:
            self.release()


@final
class NoReply:
    """The client expects nothing back (Produce with acks=0)."""

    __slots__ = ()


NO_REPLY: Final = NoReply()


Outcome: TypeAlias = Reply | NoReply | Exception


def _nothing() -> None:
    """What is left to drop when a promise is over: it must not keep alive who made it."""


@final
class Promise:
    """A reply that comes later, and is handed over in the moment it is made.

    A future tells of it in the loop's next turn, a task in the one after: for a reply that others
    wait for, that is a good part of the time it takes.
    """

    __slots__ = ("_drop", "_outcome", "_tell", "is_cancelled")

    def __init__(self, drop: Callable[[], object]) -> None:
        """`drop` is called if nobody waits for the reply any more."""
        self.is_cancelled = False
        self._drop = drop
        self._outcome: Outcome | None = None
        self._tell: list[Callable[[Outcome], None]] = []

    def keep(self, outcome: Outcome) -> None:
        """Here is the reply, or why there is none. Called once, from a turn of the loop of its own
        where the reply is an exclusive one: the next request may start in here."""
        assert self._outcome is None
        if self.is_cancelled:
            if isinstance(outcome, Reply):
                outcome.discard()
            return
        self._drop = _nothing
        waiting, self._tell = self._tell, []
        self._outcome = NO_REPLY if waiting else outcome
        for tell in waiting:
            tell(outcome)

    def when_kept(self, tell: Callable[[Outcome], None]) -> None:
        if self._outcome is None:
            self._tell.append(tell)
        else:
            tell(self._outcome)

    def cancel(self) -> None:
        """Whoever waits is gone."""
        self.is_cancelled = True
        self._tell.clear()
        drop, self._drop = self._drop, _nothing
        drop()

    def __await__(self) -> Generator[Any, None, Reply | NoReply]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        # It may be cancelled already, and not know it yet.
        self.when_kept(lambda outcome: None if future.done() else future.set_result(outcome))
        try:
            outcome = yield from future
        except asyncio.CancelledError:
            self.cancel()
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


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


@final
class Later:
    """The effects are done and only the reply waits: the next request may start meanwhile.

    What is awaited belongs to the connection, which cancels it on disconnect. A promise is the
    cheapest; a future is cheaper than a coroutine, which needs a task.
    """

    __slots__ = ("reply",)

    def __init__(self, reply: Awaitable[Reply | NoReply]) -> None:
        self.reply = reply


@final
class Exclusive:
    """No further request of this connection starts before this one is done."""

    __slots__ = ("reply",)

    def __init__(self, reply: Awaitable[Reply | NoReply]) -> None:
        self.reply = reply


Answer: TypeAlias = Reply | Later | Exclusive | NoReply
