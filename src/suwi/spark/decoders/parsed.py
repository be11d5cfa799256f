"""A value, decoded by an expression of Spark's: what it is, whether it is good, and why not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column


class Parsed(NamedTuple):
    value: "Column"
    """A struct of the columns, and of what is `hidden`."""
    names: list[str]
    is_good: "Callable[[Column], Column]"
    """Whether such a struct is as it should be."""
    reason: "Callable[[Column], Column]"
    """Why it is not."""
    hidden: tuple[str, ...] = ()
    """What is in the struct and not for the user."""
