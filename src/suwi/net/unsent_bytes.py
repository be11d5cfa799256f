"""The budget of unsent reply bytes in memory, shared by all connections.

Each connection reports its unsent bytes at `update`. When half of the budget is used, connections
with unsent bytes start no new requests. When it is exceeded, the connection with most is evicted.
Invariant: the total exceeds `bytes_max` at most by what one connection adds at once.
"""

from typing import Protocol


class UnsentBytesHolder(Protocol):
    def evict(self) -> None:
        """Close the connection at once, to free its memory."""


class UnsentBytesBudget:
    __slots__ = ("_bytes_max", "_holders", "total_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._holders: dict[UnsentBytesHolder, int] = {}

    @property
    def is_half_used(self) -> bool:
        """Whether connections with unsent bytes should start no new requests."""
        return self.total_bytes * 2 >= self._bytes_max

    def update(self, holder: UnsentBytesHolder, size_bytes: int) -> None:
        """Set the unsent bytes of a connection."""
        self.total_bytes += size_bytes - self._holders.pop(holder, 0)
        if size_bytes:
            self._holders[holder] = size_bytes
        while self.total_bytes > self._bytes_max:
            # It may only be a slow reader, but it uses the most memory and can reconnect.
            worst = max(self._holders, key=self._holders.__getitem__)
            self.total_bytes -= self._holders.pop(worst)
            worst.evict()
