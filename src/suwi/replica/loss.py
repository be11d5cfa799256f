"""The loss of an unclean election: truncated records that were or may have been committed."""

from dataclasses import dataclass

from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class LostRange:
    epoch: LeaderEpoch
    first: Offset
    end: Offset
    """The first offset that is not lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    partition: TopicPartition
    ranges: tuple[LostRange, ...]
    committed_below: Offset
    """The high watermark that the replica knew; above it records may have been committed."""

    def __str__(self) -> str:
        ranges = ", ".join(f"{r.first}-{r.end - 1} of epoch {r.epoch}" for r in self.ranges)
        return f"{self.partition}: {ranges}; high watermark was {self.committed_below}"


def lost_between(
    partition: TopicPartition,
    epochs: LeaderEpochCache,
    first: Offset,
    end: Offset,
    *,
    committed_below: Offset,
) -> Loss:
    """The records from `first` up to but excluding `end`, by leader epoch."""
    entries = epochs.entries()
    starts = [max(start, first) for _, start in entries[1:] if first < start < end]
    ranges = [
        LostRange(epochs.epoch_at(Offset(a)), Offset(a), Offset(b))
        for a, b in zip([first, *starts], [*starts, end], strict=True)
    ]
    return Loss(partition, tuple(ranges), committed_below)
