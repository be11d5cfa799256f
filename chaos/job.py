"""The job that is killed: `python -m chaos.job`, a Spark driver with pipelines that read a topic.

Each pipeline is a query with its own checkpoint; all write to one table or topic, or to several
outputs, after a shuffle. It prints `started` when they run, and ends by itself with `--once`. When
a step of a batch with several outputs is done that the file `--hold` names, it prints `at` and what
the file begins with, and goes on when the file is gone. If the file says `fault`, the query fails
there, and is started again by this process: as a new driver would, in the Java that is there.
"""

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

FAULT = "fault"
_INJECTED = "an injected fault after"


def main() -> int:
    arguments = _parse()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from suwi.spark import register
    from suwi.spark.releases import HAS_ADMISSION_CONTROL

    spark = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.adaptive.enabled", str(arguments.adaptive).lower())
        .config("spark.sql.adaptive.streaming.stateless.enabled", "true")
        .config("spark.local.dir", arguments.scratch)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    # PySpark 4.1 runs one batch, and if one was interrupted, only that one.
    for _ in range(2 if arguments.once and not HAS_ADMISSION_CONTROL else 1):
        if not _run(spark, arguments):
            return 1
    print("done", flush=True)
    spark.stop()
    return 0


def _run(spark, arguments) -> bool:  # type: ignore[no-untyped-def]
    """Until the queries end; whether all of them are done."""
    from pyspark.errors import PySparkException

    queries = {name: _start(spark, arguments, name) for name in arguments.pipelines.split(",")}
    print("started", flush=True)
    while queries:
        with suppress(PySparkException):
            spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
        for name, query in [*queries.items()]:
            if query.isActive:
                continue
            error = query.exception()
            if error is None:
                del queries[name]
            elif _INJECTED in str(error):
                queries[name] = _start(spark, arguments, name)
            else:
                print(f"failed: {str(error)[:2000]}", flush=True)
                return False
    return True


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "checkpoints", "pipelines", "master", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--rows", type=int, required=True, help="of a micro-batch, at most (not with PySpark 4.1)"
    )
    parser.add_argument("--table")
    parser.add_argument("--output", help="a topic, instead of a table, or beside it")
    for name in ("iceberg", "warehouse", "letters", "hold"):
        parser.add_argument(f"--{name}", help="with both: more outputs, a file")
    parser.add_argument("--min-partitions", default="1")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--adaptive", type=json.loads, default=True)
    parser.add_argument("--once", action="store_true")
    return parser.parse_args()


def _start(spark, arguments, pipeline):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as F  # noqa: N812

    from suwi.spark import to_delta, to_topic
    from suwi.spark.releases import HAS_ADMISSION_CONTROL

    source = (
        spark.readStream.format("suwi")
        .option("kafka.bootstrap.servers", arguments.servers)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", arguments.min_partitions)
    )
    if HAS_ADMISSION_CONTROL:
        source = source.option("maxOffsetsPerTrigger", arguments.rows)
    rows = source.load().select(
        F.lit(pipeline).alias("pipeline"),
        F.col("partition"),
        F.col("offset"),
        F.col("value").cast("string").cast("long").alias("number"),
    )
    query = {
        "checkpoint": os.path.join(arguments.checkpoints, pipeline),
        "trigger": {"availableNow": True} if arguments.once else None,
        "name": pipeline,
    }
    if arguments.output is None:
        rows = rows.repartition(3, "number")
        return to_delta(rows, arguments.table, partition_by=["pipeline"], **query)
    # By chance: a batch that is run again has other rows in each task.
    value = F.to_json(F.struct(*rows.columns)).alias("value")
    if arguments.table is not None:
        spread = rows.repartition(arguments.tasks, F.rand()).withColumn("chance", F.rand())
        return _to_outputs(spread, arguments, pipeline, query)
    return to_topic(
        rows.repartition(arguments.tasks, F.rand()).select(value),
        arguments.servers,
        arguments.output,
        options={"transactionalIdPrefix": f"chaos-{pipeline}"},
        **query,
    )


def _to_outputs(rows, arguments, pipeline, query):  # type: ignore[no-untyped-def]
    from suwi.spark import delta_output, expect, iceberg_output, outputs, topic_output
    from suwi.spark.output_batches import OutputBatches

    def topic(name, **more):  # type: ignore[no-untyped-def]
        options = {"transactionalIdPrefix": f"chaos-{pipeline}-{name}"}
        return topic_output(arguments.servers, name, options=options, **more)

    columns = "pipeline, partition, offset, number"
    given = {
        "table": delta_output(
            arguments.table, when="chance < 0.3", select=columns, partition_by=["pipeline"]
        ),
        "iceberg": iceberg_output(
            arguments.iceberg,
            warehouse=arguments.warehouse,
            when="chance >= 0.3 AND chance < 0.6",
            select=columns,
        ),
        "topic": topic(
            arguments.output, when="chance >= 0.6", select=f"to_json(struct({columns})) AS value"
        ),
    }

    def after(step):  # type: ignore[no-untyped-def]
        hold, is_told = Path(arguments.hold), False
        while True:
            try:
                order, _, wanted = hold.read_text().partition("\n")
                if wanted != step:
                    return
                if order.startswith(FAULT):
                    hold.unlink()  # Of several pipelines it is for the first that comes.
            except FileNotFoundError:
                return
            if not is_told:
                print(f"at {order}", flush=True)
            if order.startswith(FAULT):
                raise RuntimeError(f"{_INJECTED} {step}")
            is_told = True
            time.sleep(0.01)

    with patch.object(outputs, "OutputBatches", partial(OutputBatches, after=after)):
        return outputs.to_outputs(
            expect(rows, {"lucky": "chance < 0.9"}),
            given,
            dead_letters=topic(arguments.letters),
            rules={"lucky": "dead_letters"},
            **query,
        )


if __name__ == "__main__":
    sys.exit(main())
