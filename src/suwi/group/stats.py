"""What the groups of a broker have done since its start, counted for metrics."""

from collections import Counter
from dataclasses import dataclass, field

from suwi.group.history import Trigger


@dataclass(slots=True)
class GroupStats:
    offsets_committed: int = 0
    rebalances: Counter[Trigger] = field(default_factory=Counter)
    shard_failures: int = 0
