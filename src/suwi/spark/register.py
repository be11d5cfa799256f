"""`suwi.spark.register(spark)`: makes `format("suwi")` and `format("suwi-delta")` known."""

import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark shows the options of a stream in plans and errors, but for those that match this setting.
_HIDDEN: Final = "spark.sql.redaction.options.regex"
_SECRETS: Final = "(?i)jaas[.]config|keystore[.]key|key[.]password|client[.]secret"


def register(spark: "SparkSession") -> None:
    """Works wherever the package is, also where it came by `--py-files`."""
    from suwi.spark.data_source import SuwiDataSource
    from suwi.spark.delta.data_source import DeltaDataSource

    for source in (SuwiDataSource, DeltaDataSource):
        _register(spark, source)
    hidden = spark.conf.get(_HIDDEN, "")
    if _SECRETS not in hidden:
        spark.conf.set(_HIDDEN, f"{hidden}|{_SECRETS}" if hidden else _SECRETS)


def _register(spark: "SparkSession", source: type[Any]) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import is_remote

    if not is_remote():
        _show_delivered_files(spark.sparkContext)
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # PySpark 4.0 does not replace what it has found by itself, in the installed package.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _show_delivered_files(context: Any) -> None:
    """To the Pythons that Spark runs on the driver for a stream's offsets.

    They look for the files of `--py-files` in a folder that is not there (Spark 4.1 to 4.3). What
    is in the environment they do see. Executors have no such path, and their own copy goes before.
    """
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory() + os.sep
    # Spark has put them on this process's path.
    delivered = [path for path in sys.path if path.startswith(root) and os.path.isfile(path)]
    known = [path for path in context.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if new := [path for path in delivered if path not in known]:
        context.environment["PYTHONPATH"] = os.pathsep.join([*known, *new])
