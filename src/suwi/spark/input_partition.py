"""What Spark carries to a task: a range of offsets, and nothing secret."""

from pyspark.sql.datasource import InputPartition

from suwi.spark.ranges import OffsetRange


class RangePartition(InputPartition):
    def __init__(self, range_: OffsetRange) -> None:
        self.range = range_
