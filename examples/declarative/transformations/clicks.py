"""Clicks from a topic into a table, and what visitors looked at, kept up to date by Spark.

The source is found by its name alone where Suwi is installed: nothing is registered here.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType, TimestampType

from suwi.spark import decode

SERVERS = os.environ.get("SUWI_BROKER", "127.0.0.1:9092")
# Not as text: Spark would have to parse it, which the functions below may not ask of it.
SCHEMA = (
    StructType()
    .add("user", StringType(), nullable=False)
    .add("page", StringType())
    .add("at", TimestampType(), nullable=False)
)


@dp.table
def clicks() -> DataFrame:
    spark = SparkSession.active()
    rows = (
        spark.readStream.format("suwi")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    good, _ = decode(rows, json=SCHEMA)
    return good.select("user", "page", "at")


@dp.materialized_view
def pages() -> DataFrame:
    spark = SparkSession.active()
    return spark.read.table("clicks").groupBy("page").agg(F.count("*").alias("clicks"))
