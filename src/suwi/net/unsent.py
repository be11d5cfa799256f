"""Replies in memory that peers have not taken yet, of all connections together.

Each connection says at `owes` how much it holds. Where that is too much in all, those who hold any
start nothing new, and at the very limit whoever holds most has to go.
Invariant: the total is at most `bytes_max`, and what a connection adds in one go.
"""

from typing import Protocol


class Debtor(Protocol):
    def cut_off(self) -> None:
        """Others need the memory: close at once."""


class Unsent:
    __slots__ = ("_bytes_max", "_debtors", "total_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._debtors: dict[Debtor, int] = {}

    @property
    def is_much(self) -> bool:
        """Whether those who hold some should wait until it has left."""
        return self.total_bytes * 2 >= self._bytes_max

    def owes(self, debtor: Debtor, size_bytes: int) -> None:
        """Take note of how much a connection holds now."""
        self.total_bytes += size_bytes - self._debtors.pop(debtor, 0)
        if size_bytes:
            self._debtors[debtor] = size_bytes
        while self.total_bytes > self._bytes_max:
            # It may be one that only reads slowly; but it costs the most, and can come again.
            worst = max(self._debtors, key=self._debtors.__getitem__)
            self.total_bytes -= self._debtors.pop(worst)
            worst.cut_off()
