"""The honest client: what it produces must come back, whatever happens on other connections.

The broker never closes its connection, its offsets have no gaps, its values are unchanged.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final

from fuzz.world import CHECKED
from suwi.client.connection import PeerConnection
from suwi.records.batch import batches
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record, iter_records
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import decode_fetch_response
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey

_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 12
_PAUSE_S: Final = 0.01
_CODECS: Final = tuple(Compression)


def value_of(number: int) -> bytes:
    """The value of the record with this number: unique, and known to both sides."""
    return b"%d %s" % (number, hashlib.sha256(b"%d" % number).hexdigest().encode() * 3)


class Checker:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.produced = 0
        self.consumed = 0
        self._now_ms = now_ms
        self._producer_id = -1

    async def produce(self, client: PeerConnection) -> None:
        """Produce until cancelled, idempotently, with acks=all. AssertionError is a finding."""
        if self._producer_id < 0:
            answer = await client.call(
                ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout": 0}
            )
            self._producer_id = answer.producer_id
        while True:
            await self._produce_one(client, 1 + self.produced % 7)
            await asyncio.sleep(_PAUSE_S)

    async def _produce_one(self, client: PeerConnection, count: int) -> None:
        first = self.produced
        numbers = range(first, first + count)
        batch = build_batch(
            [Record(timestamp=self._now_ms(), key=b"k", value=value_of(n)) for n in numbers],
            codec=_CODECS[first % len(_CODECS)],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        topics = [(CHECKED, None, [(0, memoryview(batch))])]
        request = encode_produce_request(_PRODUCE_VERSION, None, -1, 30_000, topics)
        answer = await client.send(ApiKey.PRODUCE, _PRODUCE_VERSION, request)
        produced = decode_produce_response(_PRODUCE_VERSION, answer).topics[0].partitions[0]
        assert produced.error_code == 0, f"an honest batch was refused: {produced}"
        assert produced.base_offset == first, f"batch {first} got offset {produced.base_offset}"
        self.produced += count

    async def consume(self, client: PeerConnection) -> None:
        """Read from the current position, until cancelled. AssertionError is a finding."""
        while True:
            self.consumed = await self._read_from(client, self.consumed)

    async def read_all(self, client: PeerConnection) -> None:
        """Read everything once more from the start."""
        at = 0
        while at < self.produced:
            following = await self._read_from(client, at)
            assert following > at, f"nothing at offset {at} of {self.produced}"
            at = following

    async def _read_from(self, client: PeerConnection, offset: int) -> int:
        """Check the result of one fetch; returns the next offset."""
        asked = FetchPartition(0, -1, offset, -1, -1, 1 << 20)
        request = FetchRequest(500, 1, 1 << 20, [FetchTopic(CHECKED, None, [asked])])
        body = encode_fetch_request(_FETCH_VERSION, request)
        answer = await client.send(ApiKey.FETCH, _FETCH_VERSION, [body])
        fetched = decode_fetch_response(_FETCH_VERSION, answer).topics[0].partitions[0]
        assert fetched.error_code == 0, f"fetch at {offset}: {fetched}"
        data = memoryview(fetched.records or b"")
        for position, header in batches(data):
            for record in iter_records(data[position : position + header.size_bytes], header):
                if record.offset < offset:
                    continue  # A fetch inside a batch returns the whole batch.
                assert record.offset == offset, f"offset {record.offset} instead of {offset}"
                assert record.value == value_of(offset), f"another value at offset {offset}"
                offset += 1
        return offset
