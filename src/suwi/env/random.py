"""Randomness: backoff jitter, replica placement and new ids."""

import random
import secrets
import uuid
from typing import Protocol


class Random(Protocol):
    def uniform(self, low: float, high: float) -> float:
        """A number between `low` and `high`."""

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""

    def token(self, size_bytes: int) -> bytes:
        """Unpredictable bytes: nonces, salts, keys."""

    def uuid(self) -> uuid.UUID:
        """A new unique id."""


class SystemRandom:
    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def below(self, bound: int) -> int:
        return random.randrange(bound)

    def token(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()
