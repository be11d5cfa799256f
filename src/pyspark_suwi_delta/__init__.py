"""Found by Spark where Suwi is installed: `format("suwi-delta")` needs no registration there."""

from suwi.spark.delta.data_source import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
