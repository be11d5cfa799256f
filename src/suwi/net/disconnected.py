"""Requests of a disconnected peer that were received before the disconnect.

As in Kafka, a producer with acks=0 may send and close: requests without a response are served, up
to the first request that has one. Other requests of a disconnected peer do not reach a handler.
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
    """Wrap a dispatch function for a peer that has disconnected."""

    def serve(connection: _Connection, frame: memoryview) -> tuple[bytes, Answer]:
        if frame[:2] != _PRODUCE:
            raise CloseConnection("peer disconnected")
        header, answer = dispatch(connection, frame)
        if not isinstance(answer, NoReply):
            _drop(answer)
            raise CloseConnection("peer disconnected")
        return header, answer

    return serve


def _drop(answer: Answer) -> None:
    if isinstance(answer, Reply):
        answer.discard()
    elif not isinstance(answer, NoReply):
        as_promise(asyncio.get_running_loop(), answer.reply).cancel()
