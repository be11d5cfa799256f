"""Producer ids, taken from the store in blocks and never given out twice.

A block that is half used when the broker stops is lost, on purpose.
"""

import asyncio

from suwi.metadata.store import MetadataStore, allocate
from suwi.model.ids import ProducerId

_BLOCK = 1000


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def skip(self, used: int) -> None:
        """Never give out `used`, or an id below it. Raises `Unavailable`."""
        async with self._refill:
            first = await allocate(self._store, "producer", 1)
            if first < used:
                await allocate(self._store, "producer", used - first)

    async def next(self) -> ProducerId:
        """A producer id that nobody has had before. Raises `Unavailable`."""
        async with self._refill:
            if self._next == self._end:
                self._next = await allocate(self._store, "producer", _BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return ProducerId(self._next - 1)
