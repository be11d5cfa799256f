"""The driver that is measured: topic → table, everything that is there, batch by batch.

It prints how long the session took to start, and then one line of JSON for each batch: rows,
milliseconds, and where they went.
"""

import argparse
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "table", "checkpoint", "master", "scratch", "form"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows", type=int, required=True, help="of a micro-batch")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from suwi.spark import register, to_delta, to_iceberg

    spark = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", arguments.scratch)
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    print(json.dumps({"session_s": time.perf_counter() - began_s}), flush=True)
    records = (
        spark.readStream.format("suwi")
        .option("kafka.bootstrap.servers", arguments.servers)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", arguments.rows)
        .load()
    )
    rows = records.select("partition", "offset", "timestamp", "value")
    how: dict[str, Any] = {
        "checkpoint": arguments.checkpoint,
        "trigger": {"availableNow": True},
    }
    if arguments.form == "iceberg":
        query = to_iceberg(rows, "bench.rows", warehouse=arguments.table, **how)
    else:
        query = to_delta(rows, arguments.table, **how)
    assert query is not None
    query.awaitTermination()
    for progress in query.recentProgress:
        if progress.numInputRows:
            spent = dict(progress.durationMs)
            print(json.dumps({"rows": progress.numInputRows, "spent_ms": spent}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
