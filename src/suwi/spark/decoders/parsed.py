"""A value, decoded by an expression of Spark's: what it is, whether it is good, and why not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column


class Parsed(NamedTuple):
    value: "Column"
    """A struct of the columns; names that begin with two underscores are not for the user."""
    names: list[str]
    is_good: "Callable[[Column], Column]"
    """Whether such a struct is as it should be."""
    reason: "Callable[[Column], Column]"
    """Why it is not."""
