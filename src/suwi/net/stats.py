"""Statistics of the network layer: bytes, and requests with their durations by API.

`Measured` wraps a dispatcher if metrics are enabled; otherwise nothing is counted.
"""

import asyncio
from bisect import bisect_left
from functools import partial
from typing import Final

from suwi.env import FileRegion
from suwi.net.answers import Answer, Chunk, Exclusive, Later, NoReply, Outcome, Reply, as_promise
from suwi.net.connection import Connection, Dispatch

BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip


class ApiStats:
    """The requests of one API; durations are from arrival until the reply is ready."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)

    def observe(self, duration_s: float) -> None:
        self.count += 1
        self.total_s += duration_s
        self.buckets[bisect_left(BUCKETS_S, duration_s)] += 1


class NetStats:
    """Shared by all connections of a broker."""

    __slots__ = ("by_api", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.by_api: dict[int, ApiStats] = {}

    def observe(self, api_key: int, duration_s: float) -> None:
        stats = self.by_api.get(api_key)
        if stats is None:
            stats = self.by_api[api_key] = ApiStats()
        stats.observe(duration_s)


class Measured:
    """Wraps a dispatch function and counts its requests."""

    def __init__(self, dispatch: Dispatch, stats: NetStats) -> None:
        self._dispatch = dispatch
        self._stats = stats

    def __call__(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        api_key = int.from_bytes(frame[:2], "big")
        self._stats.received_bytes += len(frame) + 4
        header, answer = self._dispatch(connection, frame)
        if isinstance(answer, Later | Exclusive):
            answer.reply = promise = as_promise(loop, answer.reply)
            promise.when_kept(partial(self._kept, api_key, began_s, len(header)))
            return header, answer
        self._count(api_key, loop.time() - began_s, len(header), answer)
        return header, answer

    def _kept(self, api_key: int, began_s: float, header_bytes: int, outcome: Outcome) -> None:
        if not isinstance(outcome, Exception):
            duration_s = asyncio.get_running_loop().time() - began_s
            self._count(api_key, duration_s, header_bytes, outcome)

    def _count(
        self, api_key: int, duration_s: float, header_bytes: int, answer: Reply | NoReply
    ) -> None:
        self._stats.observe(api_key, duration_s)
        if isinstance(answer, Reply):
            self._stats.sent_bytes += 4 + header_bytes + sum(map(_size_bytes, answer.chunks))


def _size_bytes(chunk: Chunk) -> int:
    return chunk.size_bytes if isinstance(chunk, FileRegion) else len(chunk)
