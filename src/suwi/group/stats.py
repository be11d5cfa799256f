"""What the groups of a broker have done since its start, counted for metrics."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from suwi.group.history import Trigger


class OffsetsCommitted(NamedTuple):
    """A notice: so many offsets."""

    offsets: int


@dataclass(slots=True)
class GroupStats:
    offsets_committed: int = 0
    rebalances: Counter[Trigger] = field(default_factory=Counter)
    shard_failures: int = 0
