"""A batch query's reader: the ranges are planned once, and each is one task."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from suwi.spark.input_partition import RangePartition
from suwi.spark.lookup import Lookup
from suwi.spark.options import SourceOptions
from suwi.spark.partition_reader import read_range
from suwi.spark.planning import plan_batch
from suwi.spark.session import session_for

if TYPE_CHECKING:
    import pyarrow as pa


class SuwiReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        session = session_for(self._options.connection)
        lookup = Lookup(session.cluster, self._options)
        return [RangePartition(each) for each in session.run(plan_batch(lookup, self._options))]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark makes one up where there is nothing to read.
        return read_range(self._options, partition.range)
