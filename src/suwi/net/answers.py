"""The answers of a handler. Side effects happen inside the handler; only replies may be delayed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, TypeAlias, final

from suwi.env import FileRegion

log = logging.getLogger(__name__)

Chunk: TypeAlias = bytes | bytearray | memoryview | FileRegion


class CloseConnection(Exception):
    """The peer violated the protocol. Only its connection is closed."""


@final
@dataclass(slots=True, eq=False)
class Reply:
    """The body of a response without its header, as chunks that are sent in order.

    The chunks must not change until `release` is called. It is called exactly once: when all
    chunks have been sent, or when the connection is closed before that.
    """

    chunks: Sequence[Chunk]
    release: Callable[[], None] | None = None
    throttle_at: int | None = None
    """Where the throttle time is in the first chunk, if the schema does not say so; negative from
    its end."""

    def memory_bytes(self) -> int:
        """Memory used by the chunks. File regions are on disk and do not count."""
        return sum(len(chunk) for chunk in self.chunks if not isinstance(chunk, FileRegion))

    def discard(self) -> None:
        """Release a reply that will not be sent."""
        if self.release is not None:
            self.release()


@final
class NoReply:
    """The client expects no response (Produce with acks=0)."""

    __slots__ = ()


NO_REPLY: Final = NoReply()


Outcome: TypeAlias = Reply | NoReply | Exception


def _nothing() -> None:
    """The cancel callback of a completed promise, so that it holds no reference to its creator."""


@final
class Promise:
    """A reply that is ready later. Its callbacks run at once, inside `keep`.

    The callbacks of a future run in the next iteration of the event loop and those of a task in the
    one after that, which is a considerable part of the latency of a delayed reply.
    """

    __slots__ = ("_drop", "_finish", "_outcome", "_tell", "is_cancelled")

    def __init__(self, drop: Callable[[], object]) -> None:
        """`drop` is called when the promise is cancelled."""
        self.is_cancelled = False
        self._drop = drop
        self._finish: Callable[[Outcome], Outcome] | None = None
        self._outcome: Outcome | None = None
        self._tell: list[Callable[[Outcome], None]] = []

    def keep(self, outcome: Outcome) -> None:
        """Complete with a reply or an error. Called once. For an exclusive answer it must be called
        from a loop callback of its own, because the next request may be dispatched inside."""
        assert self._outcome is None
        if self.is_cancelled:
            _discard(outcome)
            return
        if self._finish is not None:
            outcome = self._finish(outcome)
        self._drop = _nothing
        waiting, self._tell = self._tell, []
        self._outcome = NO_REPLY if waiting else outcome
        for tell in waiting:
            tell(outcome)

    def finish_with(self, finish: Callable[[Outcome], Outcome]) -> None:
        """Change the outcome before anybody is told it. Called before `when_kept`, once."""
        if self._outcome is None:
            self._finish = finish
        else:
            self._outcome = finish(self._outcome)

    def when_kept(self, tell: Callable[[Outcome], None]) -> None:
        if self._outcome is None:
            self._tell.append(tell)
        else:
            tell(self._outcome)

    def cancel(self) -> None:
        """The reply is not needed any more."""
        self.is_cancelled = True
        self._tell.clear()
        drop, self._drop = self._drop, _nothing
        drop()

    def __await__(self) -> Generator[Any, None, Reply | NoReply]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def pass_on(outcome: Outcome) -> None:
            # The future may have been cancelled before the awaiting task has run.
            if future.done():
                _discard(outcome)
            else:
                future.set_result(outcome)

        self.when_kept(pass_on)
        try:
            outcome = yield from future
        except asyncio.CancelledError:
            self.cancel()
            if future.done() and not future.cancelled():
                _discard(future.result())
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _discard(outcome: Outcome) -> None:
    if isinstance(outcome, Reply):
        outcome.discard()


def as_promise(loop: asyncio.AbstractEventLoop, reply: Awaitable[Reply | NoReply]) -> Promise:
    """Turn any awaitable of a handler into a promise."""
    if isinstance(reply, Promise):
        return reply
    future = asyncio.ensure_future(reply, loop=loop)  # owner: the connection
    promise = Promise(future.cancel)
    future.add_done_callback(partial(_pass_on, promise))
    return promise


def _pass_on(promise: Promise, future: asyncio.Future[Reply | NoReply]) -> None:
    if future.cancelled():
        promise.keep(CloseConnection("delayed reply was cancelled"))
        return
    error = future.exception()
    if error is None:
        promise.keep(future.result())
    elif promise.is_cancelled:
        if not isinstance(error, CloseConnection):  # It would have been closed anyway.
            log.error("request failed after the client had disconnected", exc_info=error)
    else:
        assert isinstance(error, Exception)
        promise.keep(error)


@final
@dataclass(slots=True, eq=False)
class Later:
    """The side effects are done and only the reply is delayed: the next request may start.

    The connection owns the awaitable and cancels it on disconnect. A promise is the cheapest; a
    future is cheaper than a coroutine, which needs a task.
    """

    reply: Awaitable[Reply | NoReply]


@final
@dataclass(slots=True, eq=False)
class Exclusive:
    """No further request of this connection starts before this one is complete or, if it is given,
    before `until` is done, as the side effects are then.

    `waits_for_slices_only`: it awaits nothing but its next slice, so that others may wait for it.
    `give_way`: makes a reply that waits for other requests come soon, if these wait for its memory.
    """

    reply: Awaitable[Reply | NoReply]
    until: asyncio.Future[None] | None = None
    _: KW_ONLY
    waits_for_slices_only: bool = False
    give_way: Callable[[], None] | None = None


Answer: TypeAlias = Reply | Later | Exclusive | NoReply


async def reply_of(answer: Answer | Awaitable[Reply | NoReply]) -> Reply | NoReply:
    """What a handler has answered, when it is ready."""
    if isinstance(answer, Reply | NoReply):
        return answer
    return await (answer.reply if isinstance(answer, Later | Exclusive) else answer)
