"""Found by Spark itself where Suwi is installed: `format("suwi")` needs no registration there."""

from suwi.spark.data_source import SuwiDataSource as DefaultSource

__all__ = ["DefaultSource"]
