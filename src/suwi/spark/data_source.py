"""The data source `suwi`: what `spark.read.format("suwi")` and its three siblings get.

Every process that plans or runs a query makes one anew from the options, so it holds nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
_HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class SuwiDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "suwi"

    def schema(self) -> str:
        include_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return f"{_SCHEMA}, {_HEADERS}" if include_headers else _SCHEMA

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from suwi.spark.batch_reader import make_batch_reader
        from suwi.spark.options import read_source_options

        return make_batch_reader(read_source_options(self.options, streaming=False))

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from suwi.spark.options import read_source_options
        from suwi.spark.stream_reader import make_stream_reader

        return make_stream_reader(read_source_options(self.options, streaming=True))

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        return _topic_writer().batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        return _topic_writer().stream_writer(self.options, schema, overwrite)


def _topic_writer() -> Any:
    """The sink, which nobody who only reads has to load."""
    return import_module("suwi.spark.topic_writer")
