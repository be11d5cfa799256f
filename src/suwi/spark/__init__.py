"""Topics and tables in PySpark: formats `suwi` and `suwi-delta`, from PyPI packages alone.

    read.py, write.py          what a job calls: read_topics, read_delta, to_delta, to_topic, …
    register.py                makes both formats known to a session; spark_session.py opens one
    option_table.py            every option of both formats; option_kinds.py, kafka_options.py;
                               options.py: a query's options, understood
    java.py, gc_freeze.py      a Java for Spark; garbage collection in its workers
    releases.py                what differs between releases of PySpark
    where.py                   the option `where`, for both sources
    stream_reader.py           a stream as each release of PySpark asks for it, for both sources

    data_source.py             format("suwi")
      topic_reader.py            its sources, batch and stream: offsets.py, offset_resolver.py,
                                 planning.py, ranges.py, data_loss.py
      partition_reader.py        a task that reads: session.py, columns.py, kernel*.py
      topic_writer.py            a task that writes; exactly_once.py: in transactions
    row_schema.py              the columns of a record, read and written
    origin.py                  which query and batch a task belongs to
    delta/                     format("suwi-delta")
      data_source.py             the sink; commit.py, files.py, statistics.py, upsert.py, …
      reader.py                  its sources, batch and stream: log.py, scan.py
      maintenance.py             compaction and clean-up
    decoders/                  decode(): JSON, text, Avro, Protobuf, schema registry
    pipeline/                  `suwi pipeline`: a YAML file checked, shown, run, backfilled, reset
    commit_progress.py         a query's place as a consumer group's

Nothing here imports PySpark, Arrow or numba before it is used.
"""

from suwi.spark.commit_progress import commit_progress
from suwi.spark.decoders.decode import decode
from suwi.spark.read import read_delta, read_topics
from suwi.spark.register import register
from suwi.spark.spark_session import open_session
from suwi.spark.write import dead_letter, to_delta, to_parquet, to_topic

__all__ = [
    "commit_progress",
    "dead_letter",
    "decode",
    "open_session",
    "read_delta",
    "read_topics",
    "register",
    "to_delta",
    "to_parquet",
    "to_topic",
]
