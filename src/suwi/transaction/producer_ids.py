"""Producer ids, allocated from the metadata store in blocks and never assigned twice.

The unused rest of a block is discarded when the broker stops.
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
        """Make sure that no id up to and including `used` is assigned. Raises `Unavailable`."""
        async with self._refill:
            first = await allocate(self._store, "producer", 1)
            if first < used:
                await allocate(self._store, "producer", used - first)

    async def next(self) -> ProducerId:
        """A producer id that was never assigned before. Raises `Unavailable`."""
        async with self._refill:
            if self._next == self._end:
                self._next = await allocate(self._store, "producer", _BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return ProducerId(self._next - 1)
