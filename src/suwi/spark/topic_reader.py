"""The readers of `format("suwi")` on the driver: what a batch query and each micro-batch reads.

`BatchReader` plans the ranges of a batch query once, each is one task. `StreamReader` is for
PySpark from 4.2 on, where Spark says from where on and how much; `OldStreamReader` for 4.1, where
a batch always takes all there is. None defines `pushFilters` (ADR 11): the options `columns` and
`where` say what is read.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from suwi.env import local_env
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.offsets import (
    Offsets,
    beginning,
    from_json,
    replaced_topics,
    to_json,
    where_it_began,
    with_beginning,
)
from suwi.spark.options import BadOption, SourceOptions
from suwi.spark.partition_reader import read_range
from suwi.spark.planning import check_continuity, plan_batch, plan_stream
from suwi.spark.ranges import Delay, OffsetRange, limit
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from suwi.spark.session import Session, session_for

if TYPE_CHECKING:
    import pyarrow as pa


# An idle query is asked for its latest offset some forty times a second.
_ASK_EVERY_MS = 100


def make_stream_reader(options: SourceOptions) -> DataSourceStreamReader:
    """The reader for this PySpark. Raises `BadOption` where it is too old for an option."""
    if HAS_ADMISSION_CONTROL:
        return StreamReader(options)
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
    ):
        if value is not None:
            raise BadOption(f"{name} needs PySpark 4.2 or newer: this one cannot limit a batch")
    return OldStreamReader(options)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._resolver: OffsetResolver | None = None
        self._latest: Offsets = {}
        self._asked_ms = 0
        self._initial: dict[str, Any] | None = None
        """Where the query begins, if it was begun by this reader."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        session, resolver = self._connect()
        offsets = session.run(resolver.resolve(self._options.starting))
        self._initial = to_json(offsets, resolver.topic_ids)
        return self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        session, resolver = self._connect()
        first = beginning(start, end)
        ranges = session.run(plan_stream(resolver, self._options, first, end))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes one batch late, and never for the last one."""

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()

    def _connect(self) -> tuple[Session, OffsetResolver]:
        # Not in the constructor: Spark sends readers to the executors too.
        if self._session is None or self._resolver is None:
            self._session = Session(self._options.connection)
            self._resolver = OffsetResolver(self._session.cluster, self._options)
        return self._session, self._resolver

    def _ask_latest(self, known: Offsets) -> Offsets:
        now_ms = local_env().clock.now_ms()
        if not 0 <= now_ms - self._asked_ms < _ASK_EVERY_MS:
            session, resolver = self._connect()
            self._latest = session.run(resolver.latest_beyond(known))
            self._asked_ms = now_ms
        return self._latest

    @property
    def _ids(self) -> dict[str, str]:
        return {} if self._resolver is None else self._resolver.topic_ids

    def _check(self, start: dict[str, Any], latest: Offsets) -> None:
        """Before Spark writes the end of a batch to its log."""
        check_continuity(self._options, start, latest, self._ids)


class OldStreamReader(_StreamReader):
    """Spark asks a new query's reader for its latest offset, then for its initial one, and then for
    a plan; of a query that goes on it wants a plan first, if only from its last offset to the same.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._is_new = True
        """Whether nothing was planned yet: then it is a new query that is asked for its offsets."""
        self._planned: dict[str, Any] = {}
        """Where the last batch that was planned ends: where the next one begins."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return super().initialOffset() if self._initial is None else self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._is_new = False
        self._planned = end
        self._initial = where_it_began(end) or self._initial
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._is_new:
            self.initialOffset()
        latest = self._ask_latest(from_json(self._planned))
        self._check(self._planned, latest)
        end = to_json(latest, self._ids)
        is_same = latest == from_json(self._planned)
        if self._planned and is_same and not replaced_topics(self._planned, self._ids):
            return self._planned  # As it was written: Spark compares texts.
        # Spark does not say where the batch begins, so whether it is the first is not known here:
        # all ends say it, or none.
        return end if self._initial is None else with_beginning(end, self._initial)


if HAS_ADMISSION_CONTROL:
    from suwi.spark.releases import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(_StreamReader, SupportsTriggerAvailableNow):
        def __init__(self, options: SourceOptions) -> None:
            super().__init__(options)
            self._delay = Delay(options.min_offsets_per_trigger or 0, options.max_trigger_delay_ms)
            self._is_available_now = False
            self._target: Offsets | None = None

        def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802
            if self._options.max_offsets_per_trigger is not None:
                return ReadMaxRows(self._options.max_offsets_per_trigger)
            if self._options.min_offsets_per_trigger is not None:
                return ReadMinRows(self._options.min_offsets_per_trigger)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._is_available_now = True

        def latestOffset(self, start: dict[str, Any], limit: "ReadLimit") -> dict[str, Any]:  # noqa: N802
            first = from_json(start)
            available = self._available(first)
            self._check(start, available)
            anew = replaced_topics(start, self._ids)
            first = {tp: offset for tp, offset in first.items() if tp.topic not in anew}
            last = self._admitted(first, available, limit)
            if last == first:
                # As it was written: Spark compares texts.
                return start if start != self._initial else with_beginning(start, start)
            end = to_json(last, self._ids)
            return with_beginning(end, start) if start == self._initial else end

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            return to_json(self._latest) if self._latest else None

        def _available(self, start: Offsets) -> Offsets:
            if not self._is_available_now:
                return self._ask_latest(start)
            if self._target is None:
                self._target = self._ask_latest(start)
            return self._target

        def _admitted(self, start: Offsets, end: Offsets, read_limit: "ReadLimit") -> Offsets:
            if isinstance(read_limit, ReadAllAvailable):
                return end
            now_ms = local_env().clock.now_ms()
            # A query that reads what is there and ends must not wait for more.
            if not self._is_available_now and self._delay.holds_back(start, end, now_ms):
                return start
            if not isinstance(read_limit, ReadMaxRows):
                return end
            session, resolver = self._connect()
            added = session.run(resolver.earliest(end.keys() - start.keys()))
            return limit(read_limit.max_rows, {**start, **added}, end)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        session = session_for(self._options.connection)
        resolver = OffsetResolver(session.cluster, self._options)
        ranges = session.run(plan_batch(resolver, self._options))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark makes one up where there is nothing to read.
        return read_range(self._options, partition.range)


class RangePartition(InputPartition):
    def __init__(self, range_: OffsetRange) -> None:
        self.range = range_
