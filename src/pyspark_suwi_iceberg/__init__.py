"""Found by Spark where Suwi is installed: `format("suwi-iceberg")` needs no registration there."""

from suwi.spark.iceberg.data_source import IcebergDataSource as DefaultSource

__all__ = ["DefaultSource"]
