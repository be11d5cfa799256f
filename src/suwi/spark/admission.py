"""How much of what is there goes into the next micro-batch. Pure.

`limit` shares out maxOffsetsPerTrigger, `Delay` decides on minOffsetsPerTrigger; both count
offsets as Spark's Kafka connector does.
"""

import math
from collections.abc import Mapping

from suwi.model.ids import Offset, TopicPartition
from suwi.spark.offsets import Offsets


def limit(
    most: int, start: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset]
) -> Offsets:
    """An end that is at most `most` offsets away, each partition's share by what it has.

    A partition with little is not starved: it gets at least one, so the sum may be a little more.
    `start` has every partition of `end`.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(sizes.values())
    limited = dict(end)
    for partition, size in sizes.items():
        share = most * (size / total)
        offsets = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = Offset(min(end[partition], start[partition] + offsets))
    return limited


class Delay:
    """Holds back a batch that would be small, but not for longer than it may."""

    def __init__(self, least: int, delay_ms_max: int) -> None:
        self._least = least
        self._delay_ms_max = delay_ms_max
        self._last_ms: int | None = None

    def holds_back(
        self,
        start: Mapping[TopicPartition, Offset],
        end: Mapping[TopicPartition, Offset],
        now_ms: int,
    ) -> bool:
        """The first batch of a run is never held back."""
        offsets = sum(end[tp] - start.get(tp, Offset(0)) for tp in end)
        is_late = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms_max
        if offsets < self._least and not is_late:
            return True
        self._last_ms = now_ms
        return False
