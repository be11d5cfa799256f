"""What filters on topic, partition, offset and timestamp leave to be read.

`Narrowed.by` takes in the filters that Spark offers; `reads` and `narrow` apply them. Spark checks
every row again, so a filter that is not understood costs time and nothing else. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from suwi.model.ids import Offset, TopicPartition
from suwi.spark.ranges import OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Narrowed:
    topics: frozenset[str] | None = None
    """None is all of them."""
    partitions: frozenset[int] | None = None
    partition_min: int = 0
    partition_max: int = _INT64_MAX
    offset_min: int = 0
    offset_max: int = _INT64_MAX
    time_ms_min: int | None = None
    """Older records may be left out. There is no maximum: times need not rise with offsets."""

    @classmethod
    def by(cls, filters: Iterable[Filter]) -> "Narrowed":
        """By all of them: they are joined by AND."""
        narrowed = cls()
        for each in filters:
            narrowed = narrowed._and(each)
        return narrowed

    def reads(self, partition: TopicPartition) -> bool:
        number = partition.partition
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or number in self.partitions)
            and self.partition_min <= number <= self.partition_max
        )

    def narrow(self, whole: OffsetRange) -> OffsetRange:
        """The part that may have wanted rows; perhaps an empty one."""
        start = max(whole.start, self.offset_min)
        end = min(whole.end, self.offset_max + 1)
        return OffsetRange(whole.partition, Offset(start), Offset(max(start, end)))

    def _and(self, each: Filter) -> "Narrowed":
        match each:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                return self._one_of(name, [value])
            case In((name,), values):
                return self._one_of(name, values)
            case GreaterThan((name,), value):
                return self._at_least(name, value, strictly=True)
            case GreaterThanOrEqual((name,), value):
                return self._at_least(name, value)
            case LessThan((name,), value):
                return self._at_most(name, value, strictly=True)
            case LessThanOrEqual((name,), value):
                return self._at_most(name, value)
        return self

    def _one_of(self, name: str, values: Iterable[Any]) -> "Narrowed":
        wanted = {value for value in values if value is not None}
        if not wanted:
            return self
        if name in ("topic", "partition"):
            return self._within(f"{name}s", wanted)
        return self._at_least(name, min(wanted))._at_most(name, max(wanted))

    def _within(self, field: str, wanted: set[Any]) -> "Narrowed":
        known = getattr(self, field)
        return self._with(**{field: frozenset(wanted if known is None else wanted & known)})

    def _at_least(self, name: str, value: Any, *, strictly: bool = False) -> "Narrowed":
        if name == "timestamp" and isinstance(value, datetime):
            time_ms = max(_milliseconds(value), self.time_ms_min or 0)
            # A record may have no time, which is shown as a millisecond before 1970.
            return self._with(time_ms_min=time_ms) if time_ms > 0 else self
        if isinstance(value, int) and name in ("offset", "partition"):
            field = f"{name}_min"
            return self._with(**{field: max(getattr(self, field), value + strictly)})
        return self

    def _at_most(self, name: str, value: Any, *, strictly: bool = False) -> "Narrowed":
        if isinstance(value, int) and name in ("offset", "partition"):
            field = f"{name}_max"
            return self._with(**{field: min(getattr(self, field), value - strictly)})
        return self

    def _with(self, **changes: Any) -> "Narrowed":
        return Narrowed(**{**self.__dict__, **changes})


def _milliseconds(moment: datetime) -> int:
    """Rounded down. Spark gives moments with a zone; one without is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
