"""`suwi.spark.register(spark)`: makes `format("suwi")` known to a session."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Works wherever the package is, also where it came by `--py-files`."""
    from suwi.spark.data_source import SuwiDataSource

    spark.dataSource.register(SuwiDataSource)
