"""What `bronze.yaml` and `silver.yaml` do, for `spark-pipelines run`.

A sink is the end of a graph, which no other query can read. So silver reads what bronze reads, and
the topic is read by each of the three flows.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from suwi.spark import dead_letters, decode, read_delta, read_topics
from suwi.spark.decoders.decode import Decoded

SERVERS = os.environ.get("SUWI_BROKER", "127.0.0.1:9092")
LAKE = os.environ.get("LAKE", "/tmp/medallion")
# Parsed here: in the functions below Spark may not be asked.
ORDER = StructType.fromDDL("""
    id BIGINT NOT NULL, sku STRING NOT NULL, quantity INT NOT NULL, at TIMESTAMP NOT NULL,
    shipping STRUCT<country: STRING, express: BOOLEAN>
""")

dp.create_sink("bronze", "suwi-delta", {"path": f"{LAKE}/bronze"})
dp.create_sink("silver", "suwi-delta", {"path": f"{LAKE}/silver", "partitionBy": "day"})
dp.create_sink("bad", "suwi", {"kafka.bootstrap.servers": SERVERS, "topic": "orders-bad"})


def orders() -> Decoded:
    rows = read_topics(SparkSession.active(), SERVERS, "orders", starting="earliest")
    return decode(rows, json=ORDER, max_future="1 day")


@dp.append_flow(target="bronze")
def every_order() -> DataFrame:
    good, _ = orders()
    return good.select("id", "sku", "quantity", "at", "shipping", "_topic", "_partition", "_offset")


@dp.append_flow(target="bad")
def unreadable() -> DataFrame:
    return dead_letters(orders().bad, pipeline="medallion")


@dp.append_flow(target="silver")
def each_order_once() -> DataFrame:
    products = read_delta(SparkSession.active(), f"{LAKE}/products", streaming=False)
    once = orders().good.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["id"])
    return once.join(products, "sku", "left").select(
        "id",
        "at",
        f.to_date("at").alias("day"),
        "sku",
        "quantity",
        f.coalesce("category", f.lit("unknown")).alias("category"),
        (f.col("quantity") * f.coalesce("cents", f.lit(0))).alias("cents"),
        f.col("shipping.country").alias("country"),
    )
