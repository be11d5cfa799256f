"""What a check finds: what is wrong, how bad it is, and what to do."""

from typing import NamedTuple

ERROR, WARNING = "error", "warning"


class Finding(NamedTuple):
    level: str
    """`error`: it does not work, or loses records. `warning`: it may later, or is not intended."""
    about: str
    """A file, a directory, a broker or a partition."""
    problem: str
    advice: str
