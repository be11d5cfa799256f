"""`format("suwi")` in a real Spark, against a real broker: batch and streaming reads."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from suwi.records.compression import Compression
from suwi.records.record import Record
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


def run_available(stream: DataFrame, home: Path) -> list[Any]:
    """Everything there is; what all runs with this home have read so far."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
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


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_read(
    spark: SparkSession, broker: BrokerProcess, codec: Compression
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"%d" % number for number in range(300)], codec=codec)
    rows = read(spark, broker, subscribe=topic).selectExpr("cast(value as string)").collect()
    assert [int(row.value) for row in rows] == list(range(300))
