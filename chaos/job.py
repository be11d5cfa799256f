"""The job that is killed: `python -m chaos.job`, a Spark driver with pipelines that read a topic.

Each pipeline is a query with its own checkpoint; all write to one table or topic, after a
shuffle. It prints `started` when they run, and ends by itself with `--once`.
"""

import argparse
import json
import os
import sys


def main() -> int:
    arguments = _parse()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.errors import PySparkException
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
        queries = [_start(spark, arguments, name) for name in arguments.pipelines.split(",")]
        print("started", flush=True)
        try:
            for query in queries:
                query.awaitTermination()
        except PySparkException as error:
            print(f"failed: {str(error)[:2000]}", flush=True)
            return 1
    print("done", flush=True)
    spark.stop()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "checkpoints", "pipelines", "master", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--rows", type=int, required=True, help="of a micro-batch, at most (not with PySpark 4.1)"
    )
    parser.add_argument("--table")
    parser.add_argument("--output", help="a topic, instead of a table, or beside it")
    parser.add_argument("--min-partitions", default="1")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--adaptive", type=json.loads, default=True)
    parser.add_argument("--once", action="store_true")
    return parser.parse_args()


def _start(spark, arguments, pipeline):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as F  # noqa: N812

    from suwi.spark import delta_output, to_delta, to_outputs, to_topic, topic_output
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
        columns = ", ".join(rows.columns)
        topic = topic_output(
            arguments.servers,
            arguments.output,
            when="chance >= 0.5",
            select=f"to_json(struct({columns})) AS value",
            options={"transactionalIdPrefix": f"chaos-{pipeline}"},
        )
        table = delta_output(
            arguments.table, when="chance < 0.5", select=columns, partition_by=["pipeline"]
        )
        spread = rows.repartition(arguments.tasks, F.rand()).withColumn("chance", F.rand())
        return to_outputs(spread, {"table": table, "topic": topic}, **query)
    return to_topic(
        rows.repartition(arguments.tasks, F.rand()).select(value),
        arguments.servers,
        arguments.output,
        options={"transactionalIdPrefix": f"chaos-{pipeline}"},
        **query,
    )


if __name__ == "__main__":
    sys.exit(main())
