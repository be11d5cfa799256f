"""Times, sizes and counts, as people read and write them.

Invariant: `printable` text does not control a terminal, whatever bytes it comes from.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Control characters could manipulate the terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_SHORT_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
NAMED_MAX = 5
"""How many names `names_text` gives before it says how many more there are."""


def printable(text: str) -> str:
    return text.translate(_ESCAPES)


def bytes_text(data: bytes | None) -> str:
    """Bytes as text; invalid UTF-8 is escaped."""
    return "null" if data is None else data.decode("utf-8", "backslashreplace")


def size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def time_text(timestamp: int) -> str:
    """A record's timestamp, in UTC."""
    try:
        time = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return f"{timestamp} ms"
    if timestamp < 0:
        return "none" if timestamp == -1 else f"{timestamp} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(duration_ms: int) -> str:
    """About how long, in one unit."""
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms / 1000:.1f} s"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def names_text(names: Sequence[object], named_max: int = NAMED_MAX) -> str:
    """The first names, and how many more there are."""
    more = len(names) - named_max
    named = ", ".join(map(str, names[:named_max]))
    return f"{named} and {more} more" if more > 0 else named


def parse_time_ms(text: str) -> int | None:
    """An ISO 8601 time, in UTC if it names no zone, as milliseconds since 1970."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, round(time.timestamp() * 1000))


_DURATION_CHARACTERS_MAX = 40


def parse_duration_ms(text: str) -> int | None:
    """90m, 2h, 1d, or Kafka's PT1H30M."""
    if len(text) > _DURATION_CHARACTERS_MAX:
        return None
    short = _SHORT_DURATION.fullmatch(text)
    if short is not None:
        return int(short[1]) * _UNITS_MS[short[2]]
    long = _DURATION.fullmatch(text)
    if long is None or not any(long.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in long.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
