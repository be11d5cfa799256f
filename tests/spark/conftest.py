"""One Spark session and one broker for all tests of this folder: starting either takes seconds."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.broker_process import SOURCE, BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM and Python workers on a busy machine: what takes seconds can take a minute.
_LIMIT_S = 900
# PySpark and py4j leave sockets and files to the garbage collector.
_NOT_OURS = [
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning:pyspark.*",
    "ignore::pytest.PytestUnraisableExceptionWarning",
]

_MISSING = [name for name in ("numba", "pyarrow", "pyspark") if find_spec(name) is None]
if _MISSING:
    collect_ignore_glob = ["*"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MISSING:
        what = f"tests/spark skipped: pip install .[spark] for {', '.join(_MISSING)}"
        terminalreporter.write_line(what, yellow=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))
            for line in _NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session", autouse=True)
def cheap_jvms() -> Iterator[None]:
    """A third less CPU, also of programs that tests start: what they run is not optimized."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """local[2], with `format("suwi")` registered; settings that a test changes it sets back."""
    from pyspark.sql import SparkSession

    import suwi.spark

    # Workers are processes of their own: they find the package by the environment.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    root = SOURCE.parent
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(SOURCE), str(root), os.environ.get("PYTHONPATH", "")]
    )
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("suwi-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    suwi.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running
