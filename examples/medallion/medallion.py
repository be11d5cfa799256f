"""The three layers in one Spark job: topic → bronze → silver → gold, each a Delta table.

python examples/medallion/medallion.py --lake /tmp/medallion

It does what `bronze.yaml`, `silver.yaml` and `gold.yaml` do. Without `--once` the layers run side
by side, and an order is in the gold table a few seconds after it was sent.
"""

import argparse
import time
from typing import TYPE_CHECKING, Any

from suwi.spark import dead_letter, decode, open_session, read_delta, read_topics, to_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = """
    id BIGINT NOT NULL, sku STRING NOT NULL, quantity INT NOT NULL, at TIMESTAMP NOT NULL,
    shipping STRUCT<country: STRING, express: BOOLEAN>
"""
LATE = "10 minutes"
LAYERS = ("bronze", "silver", "gold")

Trigger = dict[str, Any] | None


def bronze(
    spark: "SparkSession", servers: str, lake: str, trigger: Trigger = None
) -> "list[StreamingQuery | None]":
    """Every order that can be read, as it came; what cannot be read goes to a topic."""
    rows = read_topics(spark, servers, "orders", starting="earliest")
    good, bad = decode(rows, json=ORDER, max_future="1 day")
    kept = good.select("id", "sku", "quantity", "at", "shipping", "_topic", "_partition", "_offset")
    return [
        to_delta(
            kept,
            f"{lake}/bronze",
            checkpoint=f"{lake}/_checkpoints/bronze",
            merge_schema=True,
            trigger=trigger,
            name="bronze",
        ),
        dead_letter(
            bad,
            servers,
            "orders-bad",
            checkpoint=f"{lake}/_checkpoints/bronze/dead-letters",
            trigger=trigger,
            name="bronze-dead-letters",
        ),
    ]


def silver(spark: "SparkSession", lake: str, trigger: Trigger = None) -> "StreamingQuery | None":
    """Each order once, with what is known of its product."""
    from pyspark.sql import functions as f

    orders = read_delta(
        spark, f"{lake}/bronze", columns=["id", "sku", "quantity", "at", "shipping"]
    )
    products = read_delta(spark, f"{lake}/products", streaming=False)
    once = orders.withWatermark("at", LATE).dropDuplicatesWithinWatermark(["id"])
    known = once.join(products, "sku", "left")
    rows = known.select(
        "id",
        "at",
        f.to_date("at").alias("day"),
        "sku",
        "quantity",
        f.coalesce("category", f.lit("unknown")).alias("category"),
        (f.col("quantity") * f.coalesce("cents", f.lit(0))).alias("cents"),
        f.col("shipping.country").alias("country"),
    )
    return to_delta(
        rows,
        f"{lake}/silver",
        checkpoint=f"{lake}/_checkpoints/silver",
        partition_by=["day"],
        trigger=trigger,
        name="silver",
    )


def gold(spark: "SparkSession", lake: str, trigger: Trigger = None) -> "StreamingQuery | None":
    """What each category earned in each quarter of an hour, kept up to date."""
    from pyspark.sql import functions as f

    orders = read_delta(spark, f"{lake}/silver", columns=["at", "category", "quantity", "cents"])
    quarters = orders.withWatermark("at", LATE).groupBy(f.window("at", "15 minutes"), "category")
    rows = quarters.agg(
        f.count("*").alias("orders"),
        f.sum("quantity").alias("pieces"),
        f.sum("cents").alias("cents"),
    ).select(f.col("window.start").alias("quarter"), "category", "orders", "pieces", "cents")
    return to_delta(
        rows,
        f"{lake}/gold",
        checkpoint=f"{lake}/_checkpoints/gold",
        mode="update",
        keys=["quarter", "category"],
        trigger=trigger,
        name="gold",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", default="127.0.0.1:9092")
    parser.add_argument("--lake", default="/tmp/medallion")
    parser.add_argument("--once", action="store_true", help="process what there is, and end")
    options = parser.parse_args()
    spark = open_session("medallion")
    trigger: Trigger = {"availableNow": True} if options.once else None
    queries = []
    layers = (
        lambda: bronze(spark, options.servers, options.lake, trigger),
        lambda: [silver(spark, options.lake, trigger)],
        lambda: [gold(spark, options.lake, trigger)],
    )
    for name, layer in zip(LAYERS, layers, strict=True):
        if name != "bronze":
            wait_for_table(f"{options.lake}/{LAYERS[LAYERS.index(name) - 1]}")
        started = [query for query in layer() if query is not None]
        queries += started
        if options.once:
            for query in started:
                query.awaitTermination()
    for query in queries:
        query.awaitTermination()


def wait_for_table(path: str) -> None:
    """The layer before has a table when it has its first rows."""
    from deltalake import DeltaTable

    while not DeltaTable.is_deltatable(path):
        time.sleep(0.5)


if __name__ == "__main__":
    main()
