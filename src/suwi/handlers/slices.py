"""Work over many partitions, a slice in each turn of the loop: nobody waits for all of it.

A handler whose work never waits is a generator that yields after each slice (`in_slices`). What it
answers for each partition goes into a `SlicedResponse`, which encodes it slice by slice as well.
Slices are counted in partitions, not in time, so that a simulation runs the same every time.
Invariant: between two yields nothing else runs; state is checked again after each.
"""

import asyncio
from collections.abc import Generator
from typing import Any, TypeAlias

from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.wire.codec import encode_items, encode_response, join_items
from suwi.wire.encoder import EncodedItems

SLICE_PARTITIONS = 128
"""About a millisecond, where each takes ten microseconds."""

Sliced: TypeAlias = Generator[None, None, Reply]


def in_slices(work: Sliced) -> Answer:
    """The reply at once where one slice makes it; else a slice per turn."""
    try:
        next(work)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    return Exclusive(_continue(work))


async def _continue(work: Sliced) -> Reply:
    while True:
        await asyncio.sleep(0)
        try:
            next(work)
        except StopIteration as done:
            reply: Reply = done.value
            return reply


class SlicedResponse:
    """A response of the form `{"topics": [{..., "partitions": [...]}]}`, made one by one."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._topics = _Items(request, ("topics",))
        self._topic: dict[str, Any] | None = None
        self._partitions = _Items(request, ("topics", "partitions"))
        self._in_slice = 0

    def begin_topic(self, **fields: Any) -> bool:
        """The partitions that follow are of this topic. Whether a slice is full."""
        self._end_topic()
        self._topic = fields
        return self._count()

    def add(self, partition: dict[str, Any]) -> bool:
        """Whether a slice is full, and somebody else should have a turn."""
        self._partitions.add(partition)
        return self._count()

    def reply(self, **fields: Any) -> Reply:
        self._end_topic()
        fields = {"throttle_time": 0, **fields, "topics": self._topics.take()}
        return Reply([encode_response(self._request.api_key, self._request.version, fields)])

    def _count(self) -> bool:
        self._in_slice += 1
        if self._in_slice < SLICE_PARTITIONS:
            return False
        self._in_slice = 0
        self._topics.encode()
        self._partitions.encode()
        return True

    def _end_topic(self) -> None:
        if self._topic is not None:
            self._topics.add({**self._topic, "partitions": self._partitions.take()})
            self._topic = None


class _Items:
    """The items of an array: those of earlier slices are encoded already."""

    def __init__(self, request: Request, path: tuple[str, ...]) -> None:
        self._request = request
        self._path = path
        self._plain: list[dict[str, Any]] = []
        self._encoded: list[EncodedItems] = []

    def add(self, item: dict[str, Any]) -> None:
        self._plain.append(item)

    def encode(self) -> None:
        if self._plain:
            api_key, version = self._request.api_key, self._request.version
            self._encoded.append(encode_items(api_key, version, self._path, self._plain))
            self._plain = []

    def take(self) -> list[dict[str, Any]] | EncodedItems:
        """All of them, for the encoder; the next array begins."""
        plain: list[dict[str, Any]] | EncodedItems = self._plain
        if self._encoded:
            self.encode()
            plain, self._encoded = join_items(self._encoded), []
        self._plain = []
        return plain
