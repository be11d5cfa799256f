"""Replies in memory that peers have not taken yet, of all connections together.

Each connection says at `update` how much it holds. Where that is too much in all, those who hold
any start nothing new, and at the very limit whoever holds most has to go.
Invariant: the total is at most `bytes_max`, and what a connection adds in one go.
"""

from typing import Protocol


class UnsentBytesHolder(Protocol):
    def evict(self) -> None:
        """Others need the memory: close at once."""


class UnsentBytesBudget:
    __slots__ = ("_bytes_max", "_holders", "total_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._holders: dict[UnsentBytesHolder, int] = {}

    @property
    def is_half_used(self) -> bool:
        """Whether those who hold some should wait until it has left."""
        return self.total_bytes * 2 >= self._bytes_max

    def update(self, holder: UnsentBytesHolder, size_bytes: int) -> None:
        """Take note of how much a connection holds now."""
        self.total_bytes += size_bytes - self._holders.pop(holder, 0)
        if size_bytes:
            self._holders[holder] = size_bytes
        while self.total_bytes > self._bytes_max:
            # It may be one that only reads slowly; but it costs the most, and can come again.
            worst = max(self._holders, key=self._holders.__getitem__)
            self.total_bytes -= self._holders.pop(worst)
            worst.evict()
