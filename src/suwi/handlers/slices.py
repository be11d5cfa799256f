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
from suwi.wire.codec import encode_response, encode_response_items
from suwi.wire.encoder import Written

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
        self._topics: list[dict[str, Any]] = []
        self._written_topics = Written()
        self._topic: dict[str, Any] | None = None
        self._partitions: list[dict[str, Any]] = []
        self._written_partitions = Written()
        self._in_slice = 0

    def begin_topic(self, **fields: Any) -> bool:
        """The partitions that follow are of this topic. Whether a slice is full."""
        self._end_topic()
        self._topic = fields
        return self._count()

    def add(self, partition: dict[str, Any]) -> bool:
        """Whether a slice is full, and somebody else should have a turn."""
        self._partitions.append(partition)
        return self._count()

    def reply(self, **fields: Any) -> Reply:
        self._end_topic()
        topics: list[dict[str, Any]] | Written = self._topics
        if len(self._written_topics):
            self._write_topics()
            topics = self._written_topics
        fields = {"throttle_time": 0, **fields, "topics": topics}
        return Reply([encode_response(self._request.api_key, self._request.version, fields)])

    def _count(self) -> bool:
        self._in_slice += 1
        if self._in_slice < SLICE_PARTITIONS:
            return False
        self._in_slice = 0
        self._write_topics()
        self._write_partitions()
        return True

    def _end_topic(self) -> None:
        if self._topic is None:
            return
        partitions: list[dict[str, Any]] | Written = self._partitions
        if len(self._written_partitions):
            self._write_partitions()
            partitions, self._written_partitions = self._written_partitions, Written()
        self._topics.append({**self._topic, "partitions": partitions})
        self._topic, self._partitions = None, []

    def _write_topics(self) -> None:
        self._write(("topics",), self._topics, self._written_topics)
        self._topics = []

    def _write_partitions(self) -> None:
        self._write(("topics", "partitions"), self._partitions, self._written_partitions)
        self._partitions = []

    def _write(self, path: tuple[str, ...], items: list[dict[str, Any]], written: Written) -> None:
        if items:
            api_key, version = self._request.api_key, self._request.version
            written.add(len(items), encode_response_items(api_key, version, path, items))
