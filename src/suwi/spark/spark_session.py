"""A Spark session as the examples and `suwi pipeline` use it: on this machine, or on a cluster.

`open_session` finds a Java, lets workers run this Python, and gives a local session few shuffle
partitions: Spark's 200 are for clusters, and make two minutes of a job of seconds.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from suwi.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SHUFFLE_PARTITIONS_LOCAL: Final = "4"
_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")


class NoSpark(Exception):
    """There is no session to be had; the text says why."""


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


# Catalogs and their like have names of their own.
_OPEN: Final = ("spark.sql.catalog.", "spark.sql.extensions", "spark.sql.hive.", "spark.sql.avro.")


def close_session(spark: "SparkSession") -> None:
    try:
        # Where the JVM is the first to leave, PySpark's server of accumulators prints a traceback.
        context = getattr(spark, "sparkContext", None)  # Spark Connect has none.
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.handle_error = lambda *_: None
        spark.stop()
    except Exception:
        # Its process may be gone already, which has been told.
        log.debug("Spark could not be stopped", exc_info=True)
