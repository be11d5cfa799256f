"""A batch query's reader: the ranges are planned once, and each is one task.

`make_batch_reader` chooses: a reader that takes filters is refused by sessions that do not offer
any, and is for DataFrames that are used once (see `PushingReader`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from suwi.spark.filters import Narrowed
from suwi.spark.input_partition import RangePartition
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.options import SourceOptions
from suwi.spark.partition_reader import read_range
from suwi.spark.planning import plan_batch
from suwi.spark.session import session_for

if TYPE_CHECKING:
    import pyarrow as pa


def make_batch_reader(options: SourceOptions) -> DataSourceReader:
    return PushingReader(options) if options.push_down_filters else BatchReader(options)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed: Narrowed | None = None

    def partitions(self) -> Sequence[InputPartition]:
        session = session_for(self._options.connection)
        resolver = OffsetResolver(session.cluster, self._options)
        ranges = session.run(plan_batch(resolver, self._options, self._narrowed))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark makes one up where there is nothing to read.
        return read_range(self._options, partition.range)


class PushingReader(BatchReader):
    """Reads no more than filters ask for.

    Spark (4.1 to 4.3) remembers for a DataFrame what the last of its queries pushed down, and plans
    others by it: a union of two filters on one DataFrame has rows of one of them only. So this is
    for whoever asks for it, and for DataFrames that are used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._narrowed = Narrowed.by(filters)
        return filters  # Spark checks each row again.
