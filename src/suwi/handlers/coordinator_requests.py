"""Requests that the shard of a coordinator decides.

A handler declares three things: which call its request is (`call_of`), how the response of the
machine is encoded (`encode`), and which response an error is (`error_response`).
`CoordinatorHandler` gives the call to the shard, and sends the reply, at once or later.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, M
from suwi.coordinator.runtime import CoordinatorRuntime, coordinator_error
from suwi.env.slices import Slices
from suwi.handlers.slices import Sliced, begin
from suwi.net.answers import Answer, Exclusive, Later, Promise, Reply, as_promise
from suwi.net.dispatch import Request

Response = TypeVar("Response")

HASHED_CHARACTERS: Final = 64
"""The number of characters of a key whose hashing takes as long as an item of a slice."""


def hashing(key: str) -> Iterator[None]:
    """Empty items that stand for the time of hashing a key, which may have 32,767 characters."""
    return repeat(None, len(key) // HASHED_CHARACTERS)


class CoordinatorHandler(Generic[M, Response]):
    def __init__(self, runtime: CoordinatorRuntime[M]) -> None:
        self._runtime = runtime

    def call_of(self, request: Request) -> Call[M] | Slices[Call[M]] | ErrorCode:
        """What is asked, and which method of the machine decides it; in slices if the request is
        large. An error refuses the request."""
        raise NotImplementedError

    def encode(self, request: Request, response: Response) -> Reply | Sliced:
        raise NotImplementedError

    def error_response(self, request: Request, error: ErrorCode) -> Response:
        raise NotImplementedError

    def reply_to(self, request: Request, call: Call[M]) -> Reply | Sliced:
        if call.error is not None:
            response = self.error_response(request, coordinator_error(call.error))
            return self.encode(request, response)
        return self.encode(request, call.response)

    def __call__(self, request: Request) -> Answer:
        call = self.call_of(request)
        if isinstance(call, ErrorCode):
            return _answer(request, begin(self.encode(request, self.error_response(request, call))))
        if not isinstance(call, Call):
            return Exclusive(self._answer_large(request, call))
        self._runtime.submit(call)
        if not call.is_done:
            promise = Promise(_nothing)
            call.when_done(partial(self._keep, request, promise))
            return Later(promise)
        return _answer(request, self._reply(request, call))

    async def _answer_large(self, request: Request, calling: Slices[Call[M]]) -> Reply:
        slices = request.connection.slices
        call = await slices.run(calling)
        await self._runtime.submit(call).done()
        reply = self._reply(request, call)
        return reply if isinstance(reply, Reply) else await slices.run(reply)

    def _keep(self, request: Request, promise: Promise, call: Call[M]) -> None:
        reply = self._reply(request, call)
        if isinstance(reply, Reply):
            promise.keep(reply)
        else:
            running = request.connection.slices.run(reply)
            as_promise(asyncio.get_running_loop(), running).when_kept(promise.keep)

    def _reply(self, request: Request, call: Call[M]) -> Reply | Sliced:
        """The reply, or the work that goes on in slices if it is large."""
        try:
            return begin(self.reply_to(request, call))
        except Exception as error:  # A bug, but of this reply alone: its shard goes on.
            call.error = error
            return begin(self.reply_to(request, call))


def _answer(request: Request, reply: Reply | Sliced) -> Answer:
    return reply if isinstance(reply, Reply) else Later(request.connection.slices.run(reply))


def _nothing() -> None:
    """A client that hangs up does not take back what it has asked for."""
