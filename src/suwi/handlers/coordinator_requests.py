"""Requests to a coordinator: to the shard that a key belongs to, and its reply, now or later."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Token
from suwi.coordinator.requests import Decide, coordinator_error
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.net.answers import Answer, Later, Promise, Reply, as_promise

HASHED_CHARACTERS: Final = 64
"""So many characters of a key cost as much as an item of a slice."""


def hashing(key: str) -> Iterator[None]:
    """Items that are left out, in place of the time to find the shard of a long key: it is hashed
    character by character, and may have 32,767."""
    return repeat(None, len(key) // HASHED_CHARACTERS)


class ReplyToken(Token):
    """The reply of a request: made by `encode` from a response, by `refuse` from an error. A large
    one is made in slices, and comes later."""

    __slots__ = ("_encode", "_promise", "_refuse", "reply")

    def __init__(
        self, encode: Callable[[Any], Reply | Later], refuse: Callable[[ErrorCode], Reply]
    ) -> None:
        self.reply: Reply | Later | None = None
        self._encode = encode
        self._refuse = refuse
        self._promise: Promise | None = None

    def resolve(self, response: Any) -> None:
        try:
            reply = self._encode(response)
        except Exception as error:  # A bug, but of this reply alone: its shard goes on.
            reply = self._refuse(coordinator_error(error))
        self._keep(reply)

    def fail(self, error: Exception) -> None:
        self._keep(self._refuse(coordinator_error(error)))

    def _keep(self, reply: Reply | Later) -> None:
        if self._promise is None:
            self.reply = reply
        elif isinstance(reply, Later):
            as_promise(asyncio.get_running_loop(), reply.reply).when_kept(self._promise.keep)
        else:
            self._promise.keep(reply)

    def answer(self) -> Answer:
        """The reply if it is there already, else one that comes later."""
        if self.reply is not None:
            return self.reply
        self._promise = Promise(_nothing)
        return Later(self._promise)


def _nothing() -> None:
    pass


def ask_shard(
    runtime: CoordinatorRuntime,
    key: str,
    decide: Decide,
    encode: Callable[[Any], Reply | Later],
    refuse: Callable[[ErrorCode], Reply],
    *,
    writes: bool = True,
    prolongs: bool = False,
) -> Answer:
    """Let the shard of `key` decide. `writes` and `prolongs` as in `Shard.submit`."""
    token = ReplyToken(encode, refuse)
    try:
        runtime.shard_of(key).submit(
            lambda machine, now_ms, decision: decide(machine, token, now_ms, decision),
            token,
            writes=writes,
            prolongs=prolongs,
        )
    except Exception as error:
        return refuse(coordinator_error(error))
    return token.answer()
