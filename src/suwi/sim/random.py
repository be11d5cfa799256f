"""Random numbers that are determined by a seed.

Streams are derived by name, so that drawing more from one (a longer workload) leaves the others
(schedule, faults) as they were.
"""

import random  # noqa: TID251 - this module replaces env's in a simulation
import uuid
from collections.abc import MutableSequence, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

_T = TypeVar("_T")


class SimRandom:
    """Implements `env.Random`, with the further draws that simulations need."""

    __slots__ = ("_generator", "_path", "random")

    def __init__(self, seed: int | str = 0) -> None:
        self._path = str(seed)
        digest = blake2b(self._path.encode(), digest_size=16).digest()
        self._generator = random.Random(int.from_bytes(digest, "big"))
        self.random = self._generator.random

    def stream(self, name: str) -> "SimRandom":
        """The stream of this name: always the same, however much was drawn before."""
        return SimRandom(f"{self._path}/{name}")

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def below(self, bound: int) -> int:
        return self._generator.randrange(bound)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._generator.randint(low, high)

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def choice(self, values: Sequence[_T]) -> _T:
        return values[self.below(len(values))]

    def shuffle(self, values: MutableSequence[Any]) -> None:
        self._generator.shuffle(values)

    def token(self, size_bytes: int) -> bytes:
        return self._generator.randbytes(size_bytes)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._generator.getrandbits(128), version=4)
