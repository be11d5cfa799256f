"""A Spark session as the examples and `suwi pipeline` use it: on this machine, or on a cluster.

`register` makes `format("suwi")`, `format("suwi-delta")` and `format("suwi-iceberg")` known to any
session. `open_session` finds a Java, lets workers run this Python, and gives a local session few
shuffle partitions: Spark's 200 are for clusters, and make two minutes of a job of seconds.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.declarative import is_declarative
from suwi.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SHUFFLE_PARTITIONS_LOCAL: Final = "4"
_OF_ALL_SESSIONS: Final = (
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.warehouse.dir",
)
_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")

# Spark shows the options of a stream in plans and errors, but for those that match this setting.
_HIDDEN: Final = "spark.sql.redaction.options.regex"
_SECRETS: Final = (
    "(?i)jaas[.]config|keystore[.]key|key[.]password|client[.]secret|credential|catalog[.]uri"
)


def register(spark: "SparkSession") -> None:
    """Works wherever the package is, also where it came by `--py-files`."""
    if is_declarative():
        return  # It forbids this, and finds the formats where the package is installed.
    from suwi.spark.data_source import SuwiDataSource
    from suwi.spark.delta.data_source import DeltaDataSource
    from suwi.spark.iceberg.data_source import IcebergDataSource

    for source in (SuwiDataSource, DeltaDataSource, IcebergDataSource):
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


class NoSpark(Exception):
    """No session could be opened; the text says why."""


def open_session(
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    py_files: Iterable[str] = (),
    folder: str | None = None,
) -> "SparkSession":
    """A session with these settings, on `master`, else on that of the settings, else `local[*]`.

    folder: where modules of the job's own are, for the workers.

    Raises `NoJava`, `NoSpark`, and ImportError where PySpark is not installed.
    """
    import pyspark
    from pyspark.sql import SparkSession

    use_java()
    quiet_errors()
    # Workers are processes of their own: of this Python, and with the job's own modules.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folders = [folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(one for one in folders if one)
    builder = SparkSession.builder.appName(name)
    is_set = pyspark.SparkConf().contains
    for key, value in with_defaults(settings or {}, master, is_set).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        for path in py_files:
            spark.sparkContext.addPyFile(path)
    except Exception as error:
        from suwi.spark.pipeline.failures import failure_of

        raise NoSpark(f"Spark does not start: {failure_of(error).text}") from error
    return spark


def quiet_errors() -> None:
    """PySpark prints errors with their traces, also those that are caught and reported."""
    from pyspark.logger import PySparkLogger

    if "SPARK_LOG_LEVEL" not in os.environ:
        logging.getLogger().addFilter(_is_not_of_py4j)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """It raises a lost connection to Java, and logs it besides, as if it were the program."""
    return os.sep + "py4j" + os.sep not in record.pathname


def is_of_session(setting: str) -> bool:
    """Whether sessions of one Spark may differ in it."""
    return setting.startswith("spark.sql.") and setting not in _OF_ALL_SESSIONS


def session_beside(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """Another session of the same Spark, with views and settings of its own. Raises `NoSpark`."""
    from pyspark.errors import AnalysisException

    own = spark.newSession()
    own.conf.set(SHUFFLE_PARTITIONS, spark.conf.get(SHUFFLE_PARTITIONS))
    for name, value in settings.items():
        try:
            own.conf.set(name, value)
        except AnalysisException:
            text = f"{name} cannot be set for one of several pipelines: give it to spark-submit"
            raise NoSpark(text) from None
    return own


def with_defaults(
    settings: Mapping[str, str], master: str | None, is_set: Callable[[str], bool]
) -> dict[str, str]:
    """`is_set`: whether a setting comes from outside, as with spark-submit."""
    chosen = dict(settings)
    if master is not None:
        chosen["spark.master"] = master
    elif "spark.master" not in chosen and not is_set("spark.master"):
        chosen["spark.master"] = "local[*]"
    if chosen.get("spark.master", "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Nobody else needs to reach it.
        if SHUFFLE_PARTITIONS not in chosen and not is_set(SHUFFLE_PARTITIONS):
            chosen[SHUFFLE_PARTITIONS] = _SHUFFLE_PARTITIONS_LOCAL
            log.info("local session: %s = %s", SHUFFLE_PARTITIONS, _SHUFFLE_PARTITIONS_LOCAL)
    chosen.setdefault("spark.ui.showConsoleProgress", "false")  # It writes over other lines.
    if os.path.exists(_LOGGING):  # It is not where the package is in a zip.
        told = f"-Dlog4j2.configurationFile=file:{_LOGGING}"
        chosen.setdefault("spark.driver.extraJavaOptions", told)
    return chosen


def unknown_settings(spark: "SparkSession", names: Iterable[str]) -> dict[str, str]:
    """Settings of Spark SQL that this Spark does not have, each with the one that may be meant."""
    import difflib

    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return {}  # Spark Connect: it cannot be asked.
    of_sql = [n for n in names if n.startswith("spark.sql.") and not n.startswith(_OPEN)]
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    strange = [name for name in of_sql if find(name) is None]
    if not strange:
        return {}
    known = [row["key"] for row in spark.sql("SET -v").collect()]
    close = {name: difflib.get_close_matches(name, known, n=1) for name in strange}
    return {name: found[0] if found else "" for name, found in close.items()}


# Names below these prefixes are chosen by users.
_OPEN: Final = ("spark.sql.catalog.", "spark.sql.extensions", "spark.sql.hive.", "spark.sql.avro.")


def close_session(spark: "SparkSession") -> None:
    try:
        # If the JVM ends first, PySpark's accumulator server prints a traceback.
        context = getattr(spark, "sparkContext", None)  # Spark Connect has none.
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.handle_error = lambda *_: None
        spark.stop()
    except Exception:
        # Its process may have ended already, which was reported.
        log.debug("Spark could not be stopped", exc_info=True)
