"""What is still served when a peer has closed with requests of it at hand.

As in Kafka: a producer with acks=0 may send and close, so what wants no reply is served, up to the
first request that has one. No other request of a peer that is gone reaches its handler.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from suwi.net.answers import Answer, CloseConnection, NoReply, Reply, as_promise
from suwi.wire.versions import ApiKey

_Connection = TypeVar("_Connection")

_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")


def without_reply(
    dispatch: Callable[[_Connection, memoryview], tuple[bytes, Answer]],
) -> Callable[[_Connection, memoryview], tuple[bytes, Answer]]:
    """A dispatch for a peer that is gone, in place of the one it had."""

    def serve(connection: _Connection, frame: memoryview) -> tuple[bytes, Answer]:
        if frame[:2] != _PRODUCE:
            raise CloseConnection("the peer has closed")
        header, answer = dispatch(connection, frame)
        if not isinstance(answer, NoReply):
            _drop(answer)
            raise CloseConnection("the peer has closed")
        return header, answer

    return serve


def _drop(answer: Answer) -> None:
    if isinstance(answer, Reply):
        answer.discard()
    elif not isinstance(answer, NoReply):
        as_promise(asyncio.get_running_loop(), answer.reply).cancel()
