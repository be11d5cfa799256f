"""Encodes a large Fetch response in parts; the partitions may arrive in any order of topics.

Partitions enter at `add`; `topics` then yields the chunks of each topic, which belong between
`start` and `end`. The bytes equal those of `encode_fetch_response`.
"""

from collections.abc import Iterator, Sequence
from uuid import UUID

from suwi.wire.fetch_response import (
    Chunk,
    FetchedPartition,
    encode_fetch_end,
    encode_fetch_start,
    encode_fetched_partitions,
    encode_topic_start,
)
from suwi.wire.leaders import NodeEndpoint


class _Topic:
    __slots__ = ("chunks", "partitions", "parts")

    def __init__(self) -> None:
        self.partitions = 0
        self.chunks: list[Chunk] = []
        self.parts: list[bytes] = []


class FetchParts:
    def __init__(self, version: int) -> None:
        self._version = version
        self._topics: dict[str | UUID, _Topic] = {}

    def add(self, topic: str | UUID, partitions: Sequence[FetchedPartition]) -> None:
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = _Topic()
        entry.partitions += len(partitions)
        parts = encode_fetched_partitions(self._version, partitions, entry.chunks, entry.parts)
        entry.parts = [b"".join(parts)]

    def start(self, session_id: int) -> bytes:
        return encode_fetch_start(self._version, 0, session_id, 0, len(self._topics))

    def topics(self) -> Iterator[list[Chunk]]:
        end = encode_fetch_end(
            self._version, ()
        )  # no tags: the same byte as at the end of a response
        for topic, encoded in self._topics.items():
            name, topic_id = (topic, None) if isinstance(topic, str) else (None, topic)
            start = encode_topic_start(self._version, name, topic_id, encoded.partitions)
            last = b"".join((*encoded.parts, end))
            if encoded.chunks:
                yield [start, *encoded.chunks, last]
            else:
                yield [start + last]

    def end(self, node_endpoints: Sequence[NodeEndpoint]) -> bytes:
        return encode_fetch_end(self._version, node_endpoints)


def merged(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same bytes in fewer chunks: adjacent chunks in memory are joined."""
    out: list[Chunk] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
            continue
        if run:
            out.append(b"".join(run))
            run = []
        out.append(chunk)
    last = b"".join(run)
    return [*out, last] if last else out
