"""A value decoded by a Spark expression: the row, whether it is good, and why not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

ROW = "__row"


class Parsed(NamedTuple):
    value: "Column"
    """A struct whose field `ROW` holds the columns; other fields are what the checks need."""
    schema: "StructType"
    """The columns for the user; what else `ROW` has is dropped."""
    is_good: "Callable[[Column], Column]"
    """Whether such a struct is as it should be."""
    reason: "Callable[[Column], Column]"
    """Why it is not; null where nothing is known to be wrong."""
