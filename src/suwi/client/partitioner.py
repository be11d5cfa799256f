"""Chooses a record's partition: by its key as Kafka's clients do, otherwise a sticky one.

Invariant: the partition of a key is the one that the Java client would choose.
"""

from collections.abc import Sequence

from suwi.env import Random

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFF_FFFF


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit hash for keys, as an unsigned number."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length - length % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


class StickyPartitions:
    """Records without a key fill a batch of one partition, then one of another (KIP-480)."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def choose(self, topic: str, available: Sequence[int]) -> int:
        """The topic's current partition; `available` are those that have a leader."""
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._draw(topic, available)
        return current

    def move_on(self, topic: str, partition: int, available: Sequence[int]) -> None:
        """The partition's batch is complete: switch to another partition."""
        if self._current.get(topic) == partition:
            others = [other for other in available if other != partition]
            self._draw(topic, others or available)

    def _draw(self, topic: str, available: Sequence[int]) -> int:
        drawn = available[self._random.below(len(available))]
        self._current[topic] = drawn
        return drawn
