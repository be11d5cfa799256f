"""How much one record may cost to decode: records are hostile input."""

from collections.abc import Iterable
from typing import Any

from suwi.decoders.errors import BadRecord

BYTES_MAX = 4 << 20
"""Larger values are not parsed."""
DEPTH_MAX = 100
"""Levels within a value, as Google's parsers of Protobuf have it."""
VALUES_MAX = 100_000
"""Values within a value: an Avro array of nulls has any number of items in a few bytes, and objects
of Python take far longer to make than their bytes to send."""


class Budget:
    """The values that may still be made of one record."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def spend(self, values: int, depth: int) -> None:
        self._left -= values
        if self._left < 0:
            raise too_many_values()
        if depth > DEPTH_MAX:
            raise too_deep()


def too_many_values() -> BadRecord:
    return BadRecord(f"it holds more than {VALUES_MAX} values")


def too_deep() -> BadRecord:
    return BadRecord(f"it is nested more than {DEPTH_MAX} levels deep")


def is_deeper_than(levels_max: int, value: Any) -> bool:
    """Of parsed JSON; without recursion, which such a value would exhaust."""
    level: list[Any] = [value]
    for _ in range(levels_max + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
