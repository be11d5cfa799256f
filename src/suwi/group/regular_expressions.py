"""Subscriptions by regular expression: `re2`, because its time is linear in the name's length.

Python's own `re` would let one client stop the broker. The package (`google-re2`) is imported when
the first expression comes; without it such subscriptions are refused, and nothing else is.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from suwi.group.assignors import Steps

_SLICE: Final = 2_000
_REGEX_CHARS_MAX: Final = 32_767
_KEPT: Final = 32
_BYTES_MAX: Final = 512 << 10
"""Of a compiled expression. That bounds the time of the compiler, too, which holds the GIL, so that
a thread would not help: milliseconds. The default of RE2, 8 MiB, takes 0.2 s. A subscription to
1,700 names fits."""


class InvalidRegularExpression(Exception):
    """Says what is wrong with it, in words for the client."""


@lru_cache(maxsize=_KEPT)
def compile_regex(regex: str) -> Any:
    """The compiled expression. Raises `InvalidRegularExpression`."""
    try:
        re2 = import_module("re2")
    except ImportError as error:
        raise InvalidRegularExpression(
            "this broker cannot resolve regular expressions: package google-re2 is not installed"
        ) from error
    if len(regex) > _REGEX_CHARS_MAX:
        raise InvalidRegularExpression(f"longer than {_REGEX_CHARS_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _BYTES_MAX
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex {regex!r} is not a valid RE2 expression: {_text(error)}"
        ) from error


def _text(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)


def resolve(regexes: Sequence[str], names: Sequence[str]) -> Steps[dict[str, tuple[str, ...]]]:
    """By expression the topics whose whole name it matches, in order. One that cannot be compiled
    (it comes from the log of another broker) matches nothing."""
    found: dict[str, tuple[str, ...]] = {}
    for regex in regexes:
        try:
            matches = compile_regex(regex).fullmatch
        except InvalidRegularExpression:
            found[regex] = ()
            continue
        topics: list[str] = []
        for begin in range(0, len(names), _SLICE):
            topics += [name for name in names[begin : begin + _SLICE] if matches(name)]
            yield
        found[regex] = tuple(sorted(topics))
    return found
