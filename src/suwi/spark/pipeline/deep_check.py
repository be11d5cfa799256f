"""What only brokers and Spark can tell of a pipeline: missing topics, SQL that is wrong."""

import os
import re
from typing import TYPE_CHECKING, Any

from suwi.client.errors import reason
from suwi.env import local_env
from suwi.model.errors import BrokerError
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.options import read_connection, read_source_options
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.pipeline.loading import BadFunction, load_program
from suwi.spark.pipeline.option_checks import source_options, topic_options
from suwi.spark.pipeline.problems import Problem, Problems
from suwi.spark.pipeline.spec import Pipeline, TopicSpec
from suwi.spark.pipeline.text import Text
from suwi.spark.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINE_OF_SQL = re.compile(r"\(line (\d+), pos \d+\)|; line (\d+) pos \d+")


def check_deeply(pipeline: Pipeline, spark: "SparkSession") -> list[Problem]:
    problems = Problems()
    _check_topics(pipeline, problems)
    _check_with_spark(pipeline, spark, problems)
    return sorted(problems.found)


def _resolve(texts: dict[str, Text]) -> dict[str, str]:
    disk = local_env().disk
    return {name: text.resolve(os.environ, disk) for name, text in texts.items()}


def _check_topics(pipeline: Pipeline, problems: Problems) -> None:
    source = pipeline.source
    options = read_source_options(_resolve(source_options(source)), streaming=True)
    session = Session(options.connection)
    try:
        there = {topic.name for topic in session.run(session.cluster.topics())}
        for topic in source.topics:
            name = topic.resolve(os.environ, local_env().disk)
            if name not in there:
                problems.add(topic.line, f"source.topics: there is no topic {name!r}")
        if source.pattern is not None:
            resolver = OffsetResolver(session.cluster, options)
            if not session.run(resolver.partitions()):
                problems.add(source.pattern.line, "source.pattern: no topic matches it")
    except (BrokerError, OSError) as error:
        problems.add(source.servers.line, f"source.servers: {reason(error)}")
    finally:
        session.close()
    for where, sink in (("sink", pipeline.sink), ("dead_letters", pipeline.dead_letters)):
        if isinstance(sink, TopicSpec) and sink.topic is not None:
            _check_written(where, sink, sink.topic, problems)


def _check_written(where: str, sink: TopicSpec, topic: Text, problems: Problems) -> None:
    session = Session(read_connection(_resolve(topic_options(sink))))
    name = topic.resolve(os.environ, local_env().disk)
    try:
        there = [found.name for found in session.run(session.cluster.topics())]
        if name not in there:
            problems.add(topic.line, f"{where}.topic: there is no topic {name!r}")
    except (BrokerError, OSError) as error:
        problems.add(sink.servers.line, f"{where}.servers: {reason(error)}")
    finally:
        session.close()


def _check_with_spark(pipeline: Pipeline, spark: "SparkSession", problems: Problems) -> None:
    """Let Spark analyse everything up to the sink; nothing is read."""
    try:
        load_program(pipeline).build(spark)
    except Exception as error:
        line, text = _place(pipeline, error)
        problems.add(line, text)


def _place(pipeline: Pipeline, error: Exception) -> tuple[int, str]:
    from pyspark.errors import AnalysisException

    text = failure_of(error).text
    if isinstance(error, BadFunction) and pipeline.python is not None:
        return pipeline.python.line, f"python: {error}"
    if isinstance(error, AnalysisException) and pipeline.sql is not None:
        return pipeline.sql.line + _line_of_sql(error) - 1, f"sql: {text}"
    if pipeline.python is not None and not isinstance(error, ValueError):
        return pipeline.python.line, f"python: {type(error).__name__}: {text}"
    return pipeline.decode.line, f"decode: {text}"


def _line_of_sql(error: Any) -> int:
    found = _LINE_OF_SQL.search(str(error))
    return int(found[1] or found[2]) if found else 1
