"""What an option is, and the parsers of option values.

A parser turns text as a user writes it into a value, or raises ValueError with what is allowed.
`supported`, `noted` and `refused` make the rows of the table.
"""

import re
from collections.abc import Callable
from enum import Enum, Flag, auto
from typing import Any, Final, NamedTuple

from suwi.client.addresses import Address, parse_addresses
from suwi.records.compression import Compression

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PORT: Final = re.compile(r"\[[^\]]*\]:\d+|[^:\[\]]+:\d+")


def text(given: str) -> str:
    return given


def whole(least: int) -> Callable[[str], int]:
    def parse(given: str) -> int:
        try:
            number = int(given.strip())
        except ValueError:
            number = least - 1
        if number < least:
            raise ValueError(f"allowed: whole numbers from {least} on")
        return number

    return parse


def flag(given: str) -> bool:
    if given.strip().lower() not in ("true", "false"):
        raise ValueError("allowed: true, false")
    return given.strip().lower() == "true"


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(given: str) -> str:
        if given.strip().lower() not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return given.strip().lower()

    return parse


def words(given: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.split(",") if word.strip())


def duration_ms(given: str) -> int:
    found = _DURATION.fullmatch(given.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("allowed: like 500ms, 90s, 15m, 1h, 1d")
    return int(found[1]) * _UNITS_MS[found[2]]


def file_size(given: str) -> int:
    found = _SIZE.fullmatch(given.strip())
    if found is None or int(found[1]) == 0:
        raise ValueError("allowed: a number of bytes, or as 64mb")
    return int(found[1]) * _SIZES[found[2].lower()]


def addresses(given: str) -> tuple[Address, ...]:
    """Each with its port: a host alone is more often a mistake than port 9092."""
    found = tuple(parse_addresses(given))
    for part in given.split(","):
        if part.strip() and not _PORT.fullmatch(part.strip()):
            raise ValueError(f"{part.strip()!r} has no port: give HOST:PORT, like localhost:9092")
    return found


def acks(given: str) -> int:
    found = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(given.strip().lower())
    if found is None:
        raise ValueError("allowed: all, 1, 0")
    return found


def codec(given: str) -> Compression:
    try:
        return Compression[given.strip().upper()]
    except KeyError:
        names = ", ".join(one.name.lower() for one in Compression)
        raise ValueError(f"allowed: {names}") from None


# -- options ---------------------------------------------------------------------------------------


class Status(Enum):
    SUPPORTED = "supported"
    NOTED = "accepted"
    """It changes nothing here, and the word says why that is right."""
    REFUSED = "refused"


class Use(Flag):
    """What an option is for."""

    STREAM = auto()
    BATCH = auto()
    WRITE = auto()
    TABLE_STREAM = auto()
    TABLE_BATCH = auto()
    TABLE_WRITE = auto()


READ: Final = Use.STREAM | Use.BATCH
TABLE_READ: Final = Use.TABLE_STREAM | Use.TABLE_BATCH
TABLE_ANY: Final = TABLE_READ | Use.TABLE_WRITE


class Option(NamedTuple):
    name: str
    """As it is written in documents; options are looked up without regard to case."""
    status: Status
    word: str
    """What it does, why it changes nothing, or what to do instead."""
    default: str
    """As a user would write it; empty: there is none."""
    use: Use
    parse: Callable[[str], Any] = text
    """Raises ValueError, whose text says what is allowed."""


def supported(
    name: str,
    default: str,
    word: str,
    use: Use = READ,
    parse: Callable[[str], Any] = text,
) -> Option:
    return Option(name, Status.SUPPORTED, word, default, use, parse)


def noted(names: str, word: str, use: Use = READ) -> list[Option]:
    return [Option(name, Status.NOTED, word, "", use) for name in names.split()]


def refused(names: str, word: str, use: Use = READ) -> list[Option]:
    return [Option(name, Status.REFUSED, word, "", use) for name in names.split()]
