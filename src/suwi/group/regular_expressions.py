"""Subscriptions by regular expression: `re2`, because its time is linear in the name's length.

Python's own `re` would let one client stop the broker. The package (`google-re2`) is imported when
the first expression comes; without it such subscriptions are refused, and nothing else is.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, TypeAlias

from suwi.env.slices import Slices

COST_PER_SLICE: Final = 600_000
"""How much matching one slice may do. The cost of a match is the number of the expression's
instructions times that of the name's characters; one unit takes RE2 up to 8 ns in the worst case.
"""
_NAME_COST: Final = 300
"""The least that a match costs, so that a slice has at most 2,000 names."""
_PROGRAM_MAX: Final = 6_000
"""The most instructions of an expression: matching the longest topic name takes 12 ms then."""
_COST_MAX: Final = _PROGRAM_MAX * 250
"""The most that one match may cost: it cannot be interrupted."""
_REGEX_CHARS_MAX: Final = 32_767
_KEPT: Final = 32
_BYTES_MAX: Final = 512 << 10
"""The memory that RE2 may use for a compiled expression. It bounds the time of compiling as well,
to some milliseconds; with RE2's default of 8 MiB that can take 0.2 s. The compiler holds the GIL,
so a thread would not help."""


class InvalidRegularExpression(Exception):
    """Says what is wrong with it, in words for the client."""


class Regex:
    """A compiled expression, and what a match with it may cost."""

    __slots__ = ("_compiled", "_instructions")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._instructions: int = compiled.programsize
        if self._instructions > _PROGRAM_MAX:
            raise InvalidRegularExpression(
                f"it has {self._instructions} instructions, at most {_PROGRAM_MAX} are possible"
            )

    def cost(self, name: str) -> int:
        """Raises `InvalidRegularExpression` if it is more than one slice may cost."""
        cost = self._instructions * len(name) + _NAME_COST
        if cost > _COST_MAX:
            raise InvalidRegularExpression(
                f"it has {self._instructions} instructions, which are too many for"
                f" names of {len(name)} characters"
            )
        return cost

    def matches(self, name: str) -> bool:
        """The whole name."""
        return self._compiled.fullmatch(name) is not None


@lru_cache(maxsize=_KEPT)
def compile_regex(regex: str) -> Regex:
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
    options.never_capture = True  # RE2 would look for groups after each match.
    options.max_mem = _BYTES_MAX
    try:
        return Regex(re2.compile(regex, options))
    except re2.error as error:
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex {regex!r} is not a valid RE2 expression: {_text(error)}"
        ) from error


def _text(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)


MaySee: TypeAlias = Callable[[str], bool]
"""Whether a topic may be seen."""


def resolve(
    regexes: Sequence[str], names: Sequence[str], may_see: MaySee | None = None
) -> Slices[dict[str, tuple[str, ...]]]:
    """By expression the topics whose whole name it matches, in order, and that may be seen. One
    that cannot be compiled (it comes from the log of another broker) matches nothing."""
    found: dict[str, tuple[str, ...]] = {}
    spent = 0
    for regex in regexes:
        try:
            compiled = compile_regex(regex)
        except InvalidRegularExpression:
            found[regex] = ()
            continue
        topics: list[str] = []
        for name in names:
            cost = compiled.cost(name)
            if spent and spent + cost > COST_PER_SLICE:
                yield
                spent = 0
            spent += cost
            if compiled.matches(name) and (may_see is None or may_see(name)):
                topics.append(name)
        found[regex] = tuple(sorted(topics))
    return found
