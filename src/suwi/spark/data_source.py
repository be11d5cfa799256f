"""The data source `suwi`: batch and stream, read and write.

Every process that plans or runs a query makes one anew from the options, so it holds nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from suwi.spark.option_table import WORDS

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class SuwiDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "suwi"

    def schema(self) -> StructType:
        """The rows of Spark's Kafka connector."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from suwi.spark.options import check_read_options
        from suwi.spark.row_schema import arrow_schema

        check_read_options(self.options)
        with_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        schema = from_arrow_schema(arrow_schema(include_headers=with_headers))
        named = {field.name: field for field in schema.fields}
        chosen = [name for name in WORDS.parse(self.options.get("columns", "")) if name in named]
        return StructType([named[name] for name in chosen]) if chosen else schema

    def reader(self, schema: StructType) -> "DataSourceReader":
        self._check_schema(schema)
        from suwi.spark.options import read_source_options
        from suwi.spark.topic_reader import BatchReader

        return BatchReader(read_source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802
        self._check_schema(schema)
        from suwi.spark.options import read_source_options
        from suwi.spark.stream_reader import make_stream_reader
        from suwi.spark.topic_reader import TopicSource

        return make_stream_reader(TopicSource(read_source_options(self.options, streaming=True)))

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        return _topic_writer().batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        return _topic_writer().stream_writer(self.options, schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            from suwi.spark.options import BadOption

            raise BadOption("the schema of a topic's rows is fixed: leave out `schema(…)`")


def _topic_writer() -> Any:
    """The sink, which is not loaded by jobs that only read."""
    return import_module("suwi.spark.topic_writer")
