"""The source of `format("suwi")` on the driver: what a batch query and each micro-batch reads.

`BatchReader` plans the ranges of a batch query once, each is one task; `TopicSource` is for streams
(stream_reader.py). Neither defines `pushFilters` (ADR 11): the options `columns` and `where` say
what is read.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from suwi.env import local_env
from suwi.spark import releases
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.offsets import Offsets, from_json, replaced_topics, to_json
from suwi.spark.options import SourceOptions
from suwi.spark.partition_reader import read_range
from suwi.spark.planning import Delay, OffsetRange, check_continuity, plan_batch, plan_stream
from suwi.spark.planning import limit as share_out
from suwi.spark.session import Session, session_for
from suwi.spark.stream_reader import Json, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from suwi.spark.releases import ReadLimit


class TopicSource(Source):
    ask_every_ms = 100

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._resolver: OffsetResolver | None = None
        least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
        self._delay = Delay(least or 0, options.max_trigger_delay_ms)
        self.limits = {"maxOffsetsPerTrigger": most, "minOffsetsPerTrigger": least}

    def initial(self) -> Json:
        session, resolver = self._connect()
        offsets = session.run(resolver.resolve(self._options.starting))
        return to_json(offsets, resolver.topic_ids)

    def latest(self, start: Json) -> Offsets:
        known = from_json(start)
        session, resolver = self._connect()
        return session.run(resolver.latest_beyond(known))

    def end(self, start: Json, latest: Offsets, limit: "ReadLimit | None") -> Json:
        """Raises `CheckpointMismatch`, `DataLoss`."""
        _, resolver = self._connect()
        check_continuity(self._options, start, latest, resolver.topic_ids)
        anew = replaced_topics(start, resolver.topic_ids)
        first = {tp: offset for tp, offset in from_json(start).items() if tp.topic not in anew}
        last = self._admitted(first, latest, limit)
        return start if last == first else to_json(last, resolver.topic_ids)

    def plan(self, start: Json, end: Json) -> Sequence[InputPartition]:
        session, resolver = self._connect()
        ranges = session.run(plan_stream(resolver, self._options, start, end))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)

    def default_limit(self) -> "ReadLimit":
        if self._options.max_offsets_per_trigger is not None:
            return releases.ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return releases.ReadMinRows(self._options.min_offsets_per_trigger)
        return releases.ReadAllAvailable()

    def report(self, latest: Offsets) -> Json | None:
        return to_json(latest) or None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _connect(self) -> tuple[Session, OffsetResolver]:
        if self._session is None or self._resolver is None:
            self._session = Session(self._options.connection)
            self._resolver = OffsetResolver(self._session.cluster, self._options)
        return self._session, self._resolver

    def _admitted(self, start: Offsets, end: Offsets, limit: "ReadLimit | None") -> Offsets:
        if limit is None or isinstance(limit, releases.ReadAllAvailable):
            return end
        now_ms = local_env().clock.now_ms()
        # A query that reads what is there and ends must not wait for more.
        if not self.is_available_now and self._delay.holds_back(start, end, now_ms):
            return start
        if not isinstance(limit, releases.ReadMaxRows):
            return end
        session, resolver = self._connect()
        added = session.run(resolver.earliest(end.keys() - start.keys()))
        return share_out(limit.max_rows, {**start, **added}, end)


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
