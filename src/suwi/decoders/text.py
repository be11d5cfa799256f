"""Text in UTF-8 and JSON, strictly as RFC 8259 has it."""

import json
import re
from typing import Any, NoReturn

from suwi.decoders.errors import BadRecord
from suwi.decoders.limits import (
    DEPTH_MAX,
    VALUES_MAX,
    is_deeper_than,
    too_deep,
    too_many_values,
)

# NUL and the like are in no text that people write, but in most numbers of four or eight bytes.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# A string that does not end ends with the text: so nothing is looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


class NotJson(BadRecord):
    """It is no JSON at all."""


def read_text(data: bytes) -> str:
    """Raises `BadRecord`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(
            f"not text in UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
        ) from None


def is_like_text(text: str) -> bool:
    return _CONTROL.search(text) is None


def read_json(data: bytes) -> Any:
    """Raises `BadRecord`; of those `NotJson` where it is something else."""
    if _count_values(data) > VALUES_MAX and _count_values(_STRING.sub(b"", data)) > VALUES_MAX:
        raise too_many_values()
    try:
        text = read_text(data)
        value = json.loads(text, parse_constant=_refuse_constant)
    except BadRecord as error:
        raise NotJson(f"not JSON: {error}") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} at position {error.pos}") from None
    except ValueError as error:  # a number of thousands of digits, or NaN
        raise NotJson(f"not JSON: {error}") from None
    except RecursionError:
        raise too_deep() from None
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX and is_deeper_than(DEPTH_MAX, value):
        raise too_deep()
    return value


def _count_values(data: bytes) -> int:
    """At least as many as there are, with what strings contain."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") + 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
