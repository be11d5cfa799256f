"""The Spark session of a command: on this machine, or on a cluster."""

import logging
import os
import sys
from typing import TYPE_CHECKING

from suwi.env import local_env
from suwi.spark.java import use_java
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.pipeline.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")


class NoSpark(Exception):
    """There is no session to be had; the text says why."""


def open_session(
    pipeline: Pipeline, master: str | None = None, py_files: list[str] | None = None
) -> "SparkSession":
    """Raises `NoJava`, `NoSpark`, and ImportError where PySpark is not installed."""
    import pyspark
    from pyspark.sql import SparkSession

    use_java()
    # Workers are processes of their own: of this Python, and with the pipeline's own modules.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folders = [pipeline.folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder)
    builder = SparkSession.builder.appName(pipeline.name)
    disk = local_env().disk
    settings = {name: text.resolve(os.environ, disk) for name, text in pipeline.spark.items()}
    if master is not None:
        settings["spark.master"] = master
    elif "spark.master" not in settings and not pyspark.SparkConf().contains("spark.master"):
        settings["spark.master"] = "local[*]"
    if settings.get("spark.master", "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Nobody else needs to reach it.
    settings.setdefault("spark.ui.showConsoleProgress", "false")  # We have a line of our own.
    if os.path.exists(_LOGGING):  # It is not where the package is in a zip.
        told = f"-Dlog4j2.configurationFile=file:{_LOGGING}"
        settings.setdefault("spark.driver.extraJavaOptions", told)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        for path in py_files or []:
            spark.sparkContext.addPyFile(path)
    except Exception as error:
        raise NoSpark(f"Spark does not start: {failure_of(error).text}") from error
    return spark


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
