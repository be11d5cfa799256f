"""`format("suwi")` in a real Spark, against a real broker: batch and streaming reads.

What readers do by themselves is tested without Spark, which is faster (`test_batch_reader`,
`test_stream_reader`).
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource

from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.spark.releases import HAS_ADMISSION_CONTROL
from suwi.spark.spark_session import register
from tests.broker_process import BrokerProcess
from tests.spark.topics import fill, make_topic


def read(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    return _with(spark.read, broker, options).load()


def read_stream(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    return _with(spark.readStream, broker, options).load()


def _with(reader: Any, broker: BrokerProcess, options: dict[str, Any]) -> Any:
    reader = reader.format("suwi").option("kafka.bootstrap.servers", broker.address)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader


def start(stream: DataFrame, home: Path) -> Any:
    return (
        stream.writeStream.format("parquet")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def run_available(stream: DataFrame, home: Path) -> list[Any]:
    """Everything there is; what all runs with this home have read so far."""
    query = start(stream, home)
    assert query.awaitTermination(120)
    assert query.exception() is None
    return stream.sparkSession.read.parquet(str(home / "out")).collect()


def test_a_row_has_all_that_a_record_has(spark: SparkSession, broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    record = Record(
        key=b"k", value=b"v", timestamp=1_700_000_000_123, headers=(("a", b"1"), ("a", None))
    )
    fill(broker.address, topic, [record, Record(timestamp=5)], partition=1)
    rows = read(spark, broker, subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {
            "key": b"k",
            "value": b"v",
            "topic": topic,
            "partition": 1,
            "offset": 0,
            "timestamp": rows[0].timestamp,
            "timestampType": 0,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        },
        {
            "key": None,
            "value": None,
            "topic": topic,
            "partition": 1,
            "offset": 1,
            "timestamp": rows[1].timestamp,
            "timestampType": 0,
            "headers": None,
        },
    ]
    at = rows[0].timestamp.astimezone(UTC)
    assert at == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_000)


def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, [b"a", b"b"], partition=0)
    stream = read_stream(spark, broker, subscribe=topic, startingOffsets="earliest")
    values = stream.selectExpr("cast(value as string) value")
    assert {row.value for row in run_available(values, tmp_path)} == {"a", "b"}
    fill(broker.address, topic, [b"c"], partition=1)
    fill(broker.address, topic, [b"d"], partition=0)
    assert sorted(row.value for row in run_available(values, tmp_path)) == ["a", "b", "c", "d"]


def test_many_records_of_every_codec_are_read_once(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    """Enough for the compiled kernel, in tasks that share partitions."""
    topic = make_topic(broker.address, partitions=len(Compression))
    sent = [b"%d" % number for number in range(12_000)]
    for partition, codec in enumerate(Compression):
        fill(broker.address, topic, sent, partition=partition, codec=codec)
    rows = read(spark, broker, subscribe=topic, minPartitions="10")
    assert rows.rdd.getNumPartitions() == 10
    found = rows.groupBy("partition").agg(
        functions.count("*").alias("rows"),
        functions.countDistinct("offset").alias("offsets"),
        functions.sum(functions.expr("cast(cast(value as string) as bigint)")).alias("sum"),
    )
    assert {(row.partition, row.rows, row.offsets, row.sum) for row in found.collect()} == {
        (partition, 12_000, 12_000, sum(range(12_000))) for partition in range(len(Compression))
    }


def test_every_action_reads_what_is_there(spark: SparkSession, broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"a"])
    rows = read(spark, broker, subscribe=topic)
    assert rows.count() == 1
    fill(broker.address, topic, [b"b"])
    assert rows.count() == 2


def test_a_bad_option_is_told_by_name(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read(spark, broker, subscribe="x", startingOffset="earliest").collect()


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="needs PySpark 4.2")
def test_available_now_is_read_in_batches_of_limited_size(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"%d" % number for number in range(10)])
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    stream = read_stream(spark, broker, **options).select("value")
    query = start(stream, tmp_path)
    assert query.awaitTermination(120)
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert [each.numInputRows for each in progress] == [4, 4, 2]
    assert json.loads(progress[0].sources[0].latestOffset)[topic] == {"0": 10}
    assert json.loads(progress[-1].sources[0].endOffset)[topic] == {"0": 10}


def test_columns_and_rows_chosen_by_options_hold_for_every_use_of_a_frame(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, [b"a", b"b"], partition=0)
    fill(broker.address, topic, [b"c"], partition=1)
    chosen = {"where": "partition = 0 AND offset > 0", "columns": "offset,value"}
    rows = read(spark, broker, subscribe=topic, **chosen)
    assert rows.columns == ["offset", "value"]
    assert [bytes(row.value) for row in rows.collect()] == [b"b"]
    # One frame may be used in many ways, whatever the session pushes down (ADR 11).
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(spark, broker, subscribe=topic)
        both = rows.where("partition = 0").union(rows.where("partition = 1"))
        assert sorted(bytes(row.value) for row in both.collect()) == [b"a", b"b", b"c"]
        assert rows.count() == 3
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_wrong_option_is_named_by_load(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="did you mean 'failOnDataLoss'"):
        read_stream(spark, broker, subscribe="a", failOnDatLoss="false")
    with pytest.raises(PySparkException, match="minPartitions=0: allowed"):
        read(spark, broker, subscribe="a", minPartitions="0")
    read(spark, broker, subscribe="a", endingOffsets="latest")
    read_stream(spark, broker, subscribe="a", maxOffsetsPerTrigger="5")


def test_spark_finds_the_formats_by_itself_where_the_package_is_installed() -> None:
    import pyspark_suwi
    import pyspark_suwi_delta
    import pyspark_suwi_iceberg

    for package, name in (
        (pyspark_suwi, "suwi"),
        (pyspark_suwi_delta, "suwi-delta"),
        (pyspark_suwi_iceberg, "suwi-iceberg"),
    ):
        assert package.DefaultSource.name() == name
        assert issubclass(package.DefaultSource, DataSource)


def test_nothing_is_registered_where_a_declarative_pipeline_is_defined(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is forbidden there, and not needed."""
    definitions = pytest.importorskip("pyspark.pipelines.graph_element_registry")
    registered: list[object] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda _, one: registered.append(one))
    with definitions.graph_element_registration_context(object()):
        register(spark)
    assert registered == []
    register(spark)
    assert len(registered) == 3


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    heavy = "pyspark pyarrow numba numpy"
    script = f"import suwi.spark, sys; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
