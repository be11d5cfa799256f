"""Topics and tables in PySpark: `suwi`, `suwi-delta`, `suwi-iceberg`, from PyPI packages alone.

    read.py, write.py          what a job calls: read_topics, read_delta, to_delta, to_topic, …
    outputs.py                 to_outputs: one read into several tables and topics
      output_batches.py          its batches: tasks, manifest.py, commits; query_plan.py
    spark_session.py           makes the formats known to a session, or opens one
    option_table.py            every option of the formats; options.py: a query's, understood
    java.py, gc_freeze.py      a Java for Spark; garbage collection in its workers
    releases.py                what differs between releases of PySpark; declarative.py: in the
                                 files of declarative pipelines
    where.py                   the option `where`, for both sources
    stream_reader.py           a stream as each release of PySpark asks for it, for both sources

    data_source.py             format("suwi")
      topic_reader.py            its sources, batch and stream: offsets.py, offset_resolver.py,
                                 planning.py
      partition_reader.py        a task that reads: session.py, columns.py, kernel*.py
      topic_writer.py            a task that writes; exactly_once.py: in transactions
    rules.py                   rules for rows: `expect`, and what sinks do with rows that break them
    row_schema.py              the columns of a record, read and written
    origin.py                  which query and batch a task belongs to
    table_writer.py            a sink of tables in any format; table_commit.py: its one commit
    delta/                     format("suwi-delta")
      data_source.py             the sink; commit.py, files.py, statistics.py, upsert.py, …
      reader.py                  its sources, batch and stream: log.py, scan.py
      parquet_source.py          a batch through Spark's Parquet source, where that gives the same
      maintenance.py             compaction and clean-up
    iceberg/                   format("suwi-iceberg")
      data_source.py             the sink; table.py, files.py, schema.py
    decoders/                  decode(): columns of JSON, text, Avro, Protobuf; see suwi.decoders
    pipeline/                  `suwi pipeline`: a YAML file checked, shown, run, backfilled, reset
    commit_progress.py         a query's place as a consumer group's

Nothing here imports PySpark, Arrow or numba before it is used.
"""

from suwi.spark.commit_progress import commit_progress
from suwi.spark.decoders.decode import decode, decode_together
from suwi.spark.outputs import delta_output, iceberg_output, to_outputs, topic_output
from suwi.spark.pipeline.failures import reason
from suwi.spark.read import read_delta, read_topics
from suwi.spark.rules import expect
from suwi.spark.spark_session import open_session, register
from suwi.spark.write import dead_letter, dead_letters, to_delta, to_iceberg, to_parquet, to_topic

__all__ = [
    "commit_progress",
    "dead_letter",
    "dead_letters",
    "decode",
    "decode_together",
    "delta_output",
    "expect",
    "iceberg_output",
    "open_session",
    "read_delta",
    "read_topics",
    "reason",
    "register",
    "to_delta",
    "to_iceberg",
    "to_outputs",
    "to_parquet",
    "to_topic",
    "topic_output",
]
