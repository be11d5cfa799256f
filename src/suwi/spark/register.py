"""`suwi.spark.register(spark)`: makes `format("suwi")` and `format("suwi-delta")` known."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark shows the options of a stream in plans and errors, but for those that match this setting.
_HIDDEN: Final = "spark.sql.redaction.options.regex"
_SECRETS: Final = "(?i)jaas[.]config|keystore[.]key|key[.]password|client[.]secret"


def register(spark: "SparkSession") -> None:
    """Works wherever the package is, also where it came by `--py-files`."""
    from suwi.spark.data_source import SuwiDataSource
    from suwi.spark.to_delta import register_delta

    spark.dataSource.register(SuwiDataSource)
    hidden = spark.conf.get(_HIDDEN, "")
    if _SECRETS not in hidden:
        spark.conf.set(_HIDDEN, f"{hidden}|{_SECRETS}" if hidden else _SECRETS)
    register_delta(spark)
