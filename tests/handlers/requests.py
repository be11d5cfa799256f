"""Requests and replicas for tests that call handlers directly."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from suwi.net.answers import Answer, Exclusive, Later, NoReply, Reply
from suwi.net.buffer_pool import BufferPool, KeptBytes
from suwi.net.connection import ClientIdentity
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.replica.partition import Partition
from suwi.wire.codec import encode_request, read_request, read_response

_POOL = BufferPool(1 << 30)


class NoConnection:
    """Handlers read nothing else of a connection; other requests have no slices."""

    @property
    def slices(self) -> SliceTurns:
        return SliceTurns()

    def keep(self, data: memoryview) -> KeptBytes:
        return KeptBytes(_POOL, data)


NO_CONNECTION: Any = NoConnection()
PEER = ClientIdentity("PLAINTEXT", is_peer=True)
"""A broker: some requests are served only for brokers."""


def request_of(api_key: int, version: int, body: bytes | bytearray, message: Any = None) -> Request:
    return Request(api_key, version, 1, "test", memoryview(body), message, NO_CONNECTION, PEER)


def request(api_key: int, version: int, fields: Mapping[str, Any]) -> Request:
    body = encode_request(api_key, version, fields)
    return request_of(api_key, version, body, read_request(api_key, version, body))


async def reply_of(answer: Answer | Coroutine[Any, Any, Reply | NoReply]) -> Reply:
    """Wait for the reply."""
    if isinstance(answer, Later | Exclusive):
        answer = await answer.reply  # type: ignore[assignment]
    elif asyncio.iscoroutine(answer):
        answer = await answer
    assert isinstance(answer, Reply)
    return answer


async def response_to(asked: Request, answer: Answer | Coroutine[Any, Any, Reply | NoReply]) -> Any:
    reply = await reply_of(answer)
    body = b"".join(bytes(chunk) for chunk in reply.chunks)  # type: ignore[arg-type]
    return read_response(asked.api_key, asked.version, body)


class ManyReplicas:
    """One partition under many indexes; counts the lookups per iteration of the event loop."""

    def __init__(self, partition: Partition) -> None:
        self.by_turn: Counter[int] = Counter()
        self._partition = partition
        self._turn = 0
        self._ticking: asyncio.Handle | None = None

    def leader_of(self, topic: str, index: int) -> Partition:
        if self._ticking is None:
            self._tick()
        self.by_turn[self._turn] += 1
        return self._partition

    replica_of = leader_of

    def stop(self) -> None:
        assert self._ticking is not None
        self._ticking.cancel()

    def _tick(self) -> None:
        """Runs once per iteration: a callback scheduled in one iteration runs in the next."""
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)
