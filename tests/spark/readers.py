"""Readers of `format("suwi")` without Spark around them: what it would call, called by a test."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from suwi.spark.options import read_source_options
from suwi.spark.session import close_sessions
from suwi.spark.stream_reader import make_stream_reader
from suwi.spark.topic_reader import BatchReader, TopicSource
from tests.broker_process import BrokerProcess

Row = dict[str, Any]
_running: list[DataSourceStreamReader] = []


def batch_reader(broker: BrokerProcess | str, **options: str) -> DataSourceReader:
    return BatchReader(read_source_options(_options(broker, options), streaming=False))


def stream_reader(broker: BrokerProcess | str, **options: str) -> DataSourceStreamReader:
    source = TopicSource(read_source_options(_options(broker, options), streaming=True))
    reader = make_stream_reader(source)
    _running.append(reader)
    return reader


def stop_readers() -> None:
    """What Spark does at the end of a query and of a worker."""
    while _running:
        _running.pop().stop()
    close_sessions()


def _options(broker: BrokerProcess | str, options: dict[str, str]) -> dict[str, str]:
    address = broker if isinstance(broker, str) else broker.address
    named = {name.replace("__", "."): value for name, value in options.items()}
    return {"kafka.bootstrap.servers": address, **named}


def read_all(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Iterable[InputPartition]
) -> list[Row]:
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]


def read_batch(broker: BrokerProcess | str, **options: str) -> list[Row]:
    reader = batch_reader(broker, **options)
    return read_all(reader, reader.partitions())


def values(rows: Iterable[Row]) -> list[str]:
    return [row["value"].decode() for row in rows]
