"""Times and durations as people give them on the command line."""

import re
from datetime import UTC, datetime
from typing import Final

_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_SHORT: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 time, in UTC where it names no zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, round(time.timestamp() * 1000))


def parse_duration_ms(text: str) -> int | None:
    """Of 90m, 2h, 1d, or Kafka's PT1H30M."""
    short = _SHORT.fullmatch(text)
    if short is not None:
        return int(short[1]) * _UNITS_MS[short[2]]
    long = _DURATION.fullmatch(text)
    if long is None or not any(long.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in long.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
