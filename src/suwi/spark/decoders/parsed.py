"""What decoding gives: a row, whether it is good and why not; and what goes wrong with a job."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class CannotDecode(ValueError):
    """The arguments do not fit together, or a schema cannot be used: nothing was read."""


class BadRecord(Exception):
    """One record cannot be decoded; the text is the reason that goes with it."""


class RegistryUnavailable(Exception):
    """The schema registry does not answer: no fault of a record. The task fails and is repeated."""


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
