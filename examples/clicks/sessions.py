"""Click events into a Delta table of sessions, in Python.

A session is a visitor's clicks with less than ten minutes between one and the next. It is written,
once, when no click can come any more that belongs to it: when clicks two minutes later than its end
have been seen.

    python examples/clicks/sessions.py --servers 127.0.0.1:9092 --out /tmp/clicks
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from suwi.spark import dead_letter, decode, read_topics, to_delta
from suwi.spark.java import use_java

SCHEMA = "user STRING NOT NULL, page STRING, at TIMESTAMP NOT NULL"
ONCE = {"availableNow": True}


def sessions(clicks: DataFrame) -> DataFrame:
    return (
        clicks.withWatermark("at", "2 minutes")
        .groupBy("user", F.session_window("at", "10 minutes"))
        .agg(F.count("*").alias("clicks"), F.collect_set("page").alias("pages"))
        .select(
            "user",
            F.col("session_window.start").alias("start"),
            F.col("session_window.end").alias("end"),
            "clicks",
            (F.array_contains("pages", "/pay")).alias("has_paid"),
        )
    )


def start(spark: SparkSession, servers: str, out: str) -> list[StreamingQuery | None]:
    rows = read_topics(spark, servers, "clicks", starting="earliest")
    clicks, bad = decode(rows, json=SCHEMA)
    return [
        to_delta(sessions(clicks), f"{out}/sessions", checkpoint=f"{out}/checkpoint", trigger=ONCE),
        dead_letter(bad, servers, "clicks-bad", checkpoint=f"{out}/checkpoint-bad", trigger=ONCE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--out", required=True, metavar="DIR")
    options = parser.parse_args()
    use_java()
    spark = SparkSession.builder.appName("sessions").getOrCreate()
    for query in start(spark, options.servers, options.out):
        if query is not None:
            query.awaitTermination()


if __name__ == "__main__":
    main()
