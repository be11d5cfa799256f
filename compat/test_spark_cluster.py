"""A pipeline on a Spark cluster of several processes, to which the package must be shipped.

Nothing here needs Apache Kafka: Spark comes with PySpark, and the broker is ours.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")
pytest.importorskip("numba", reason="numba is not installed: pip install .[spark]")
pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")
pytest.importorskip("hatchling", reason="hatchling is not installed: pip install .[dev]")

from deltalake import DeltaTable

from compat.spark_cluster import (
    SparkCluster,
    build_wheel,
    clean_environment,
    make_python,
    run,
    without_powers,
)
from suwi.spark.java import NoJava, use_java
from tests.broker_process import BrokerProcess
from tests.spark.topics import fill, make_topic

NEEDS_KAFKA = False
pytestmark = pytest.mark.timeout(900)

# More than what a worker decodes before the kernel is compiled, in every partition.
RECORDS = 30_000
PIPELINE = """\
name: orders
source: {{servers: "{broker}", topics: {topic}}}
decode: {{json: id BIGINT NOT NULL}}
python: places:with_places
sink: {{delta: {folder}/table}}
dead_letters: {{topic: {bad}}}
checkpoint: {folder}/checkpoint
spark:
  spark.driver.host: 127.0.0.1
  spark.driver.memory: 512m
  spark.executor.memory: 512m
  # Both executors are there before the first task is.
  spark.cores.max: 2
  spark.scheduler.minRegisteredResourcesRatio: 1.0
  spark.ui.enabled: false
{settings}"""
# Where a task runs, and where its Suwi comes from.
PLACES = """\
import os
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StringType

@functions.udf(StringType())
def place(_):
    import suwi
    return "|".join([os.getcwd(), os.path.dirname(suwi.__file__), os.environ.get("HOME", "none")])

def with_places(rows: DataFrame) -> DataFrame:
    return rows.select("id", place("id").alias("place"))
"""


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    try:
        use_java()
    except NoJava as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The Python of the machine on which the command is run."""
    return make_python(tmp_path_factory.mktemp("driver") / "env", wheel)


class Place(NamedTuple):
    executor: str
    package: str
    home: str


class Job:
    def __init__(self, suwi: BrokerProcess, cluster: SparkCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._broker = suwi.address
        self._topic = make_topic(self._broker, partitions=2, word="orders")
        self._bad = make_topic(self._broker, word="bad")
        for partition in range(2):
            first = partition * RECORDS
            numbers = range(first, first + RECORDS)
            records = [b'{"id": %d}' % number for number in numbers]
            fill(self._broker, self._topic, records, partition=partition)
        fill(self._broker, self._topic, [b"nonsense"])

    def run(
        self, driver: list[object], workers: Path, *py_files: Path, settings: str = ""
    ) -> list[Place]:
        """Run once on the cluster; returns where its tasks have run."""
        beside = self._folder / "pipeline"
        beside.mkdir()
        places = beside / "places.py"
        places.write_text(PLACES)
        names = {"broker": self._broker, "topic": self._topic, "bad": self._bad}
        file = beside / "pipeline.yaml"
        file.write_text(PIPELINE.format(**names, folder=self._folder, settings=settings))
        delivered = [word for path in (*py_files, places) for word in ("--py-files", path)]
        said = run(
            *(*driver, "pipeline", "run", file, "--once", "--retries", "0"),
            *("--master", self._cluster.master, *delivered),
            environment=clean_environment(home=False) | {"PYSPARK_PYTHON": str(workers)},
        )
        rows: list[dict[str, Any]] = (
            DeltaTable(str(self._folder / "table")).to_pyarrow_table().to_pylist()
        )
        assert sorted(row["id"] for row in rows) == list(range(2 * RECORDS)), said
        # It is logged if the compiled decoder is not available.
        assert "without numba" not in self._cluster.said()
        assert "orders-dead-letters" in said
        return sorted({Place(*row["place"].split("|")) for row in rows})


@pytest.fixture
def job(suwi: BrokerProcess, cluster: SparkCluster, tmp_path: Path) -> Job:
    return Job(suwi, cluster, tmp_path)


def test_a_zip_brings_the_package_to_workers_that_do_not_have_it(
    job: Job, driver: Path, wheel: Path, tmp_path: Path
) -> None:
    workers = make_python(tmp_path / "workers")
    found = run(
        workers, "-c", "from importlib.util import find_spec as f; print(f('suwi'), f('pyspark'))"
    )
    if not found.startswith("None ModuleSpec"):
        pytest.skip(f"Suwi lies among its dependencies, and could not be missing: {found}")
    zipped = tmp_path / "package.zip"
    zipped.write_bytes(wheel.read_bytes())  # A wheel is a zip.

    places = job.run([driver.with_name("suwi")], workers, zipped)

    assert len({place.executor for place in places}) == 2
    for place in places:
        assert place.package.endswith("/package.zip/suwi")
        assert not place.package.startswith(str(tmp_path)), "it is a copy of Spark's"
        assert place.home == "none"


def test_a_driver_that_has_the_package_in_a_zip_only_runs_a_pipeline(
    job: Job, wheel: Path, tmp_path: Path
) -> None:
    python = make_python(tmp_path / "everywhere")
    zipped = tmp_path / "package.zip"
    zipped.write_bytes(wheel.read_bytes())
    start = f"import sys; sys.path.insert(0, {str(zipped)!r}); from suwi.cli.main import app; app()"

    places = job.run([python, "-c", start], python, zipped)

    assert {place.package.endswith("/package.zip/suwi") for place in places} == {True}


def test_a_wheel_that_workers_have_installed_may_be_where_nobody_can_write(
    job: Job, driver: Path, wheel: Path, tmp_path: Path
) -> None:
    workers = make_python(tmp_path / "workers", wheel)
    home = tmp_path / "home"
    home.mkdir()
    make_read_only(tmp_path / "workers")
    make_read_only(home)
    probe = [*without_powers(), "touch", str(home / "probe")]
    with pytest.raises(AssertionError, match="ermission denied"):
        run(*probe)

    places = job.run(
        [driver.with_name("suwi")], workers, settings=f"  spark.executorEnv.HOME: {home}\n"
    )

    assert len({place.executor for place in places}) == 2
    for place in places:
        assert place.package.startswith(str(tmp_path / "workers"))
        assert place.home == str(home)


def make_read_only(folder: Path) -> None:
    for name, folders, files in os.walk(folder):
        for one in [Path(name), *(Path(name, each) for each in (*folders, *files))]:
            if not one.is_symlink():
                one.chmod(one.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
