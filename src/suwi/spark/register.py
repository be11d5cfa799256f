"""`suwi.spark.register(spark)`: makes `format("suwi")` and `format("suwi-delta")` known."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Works wherever the package is, also where it came by `--py-files`."""
    from suwi.spark.data_source import SuwiDataSource
    from suwi.spark.to_delta import register_delta

    spark.dataSource.register(SuwiDataSource)
    register_delta(spark)
