"""Rows into topics: what stands in the topic afterwards, and what is refused before."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from suwi.client.partitioner import partition_of_key
from suwi.spark.pipeline.failures import failure_of
from suwi.spark.write import dead_letter, to_topic
from tests.broker_process import BrokerProcess
from tests.spark.streams import NOW, Arrivals, finish, lose_last_commit
from tests.spark.topics import make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AT = datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)


def read(spark: "SparkSession", broker: BrokerProcess, *topics: str) -> list[dict[str, Any]]:
    frame = (
        spark.read.format("suwi")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", ",".join(topics))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return [
        row.asDict(recursive=True)
        for row in frame.orderBy("topic", "partition", "offset").collect()
    ]


def test_keys_partitions_topics_and_headers_become_those_of_the_records(
    spark: "SparkSession", broker: BrokerProcess
) -> None:
    left = make_topic(broker.address, partitions=4)
    right = make_topic(broker.address)
    rows = [
        (left, "k1", "by key", None, None),
        (left, None, "by partition", 3, [("h", b"1"), ("h", None)]),
        (right, None, None, None, []),
    ]
    frame = spark.createDataFrame(
        rows,
        "topic string, key string, value string, partition int, "
        "headers array<struct<key:string,value:binary>>",
    )
    to_topic(frame.withColumn("ignored", frame.value), broker.address)
    read_rows = read(spark, broker, left, right)
    # PySpark 4.0 has bytearrays, which cannot be keys.
    found = {row["value"] and bytes(row["value"]): row for row in read_rows}
    assert found[b"by key"]["key"] == b"k1"
    assert found[b"by key"]["partition"] == partition_of_key(b"k1", 4)
    assert found[b"by key"]["headers"] is None
    assert found[b"by partition"]["partition"] == 3
    assert found[b"by partition"]["headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": None},
    ]
    assert found[None]["topic"] == right
    assert len(found) == 3


def test_the_option_goes_before_the_column_and_all_rows_arrive_once_in_order(
    spark: "SparkSession", broker: BrokerProcess
) -> None:
    topic = make_topic(broker.address)
    frame = spark.range(0, 5000, 1, 1).selectExpr(
        "'nowhere' as topic", "cast(id as string) as value", "0 as partition"
    )
    to_topic(frame, broker.address, topic, options={"kafka.compression.type": "zstd"})
    values = [row["value"] for row in read(spark, broker, topic)]
    assert values == [str(number).encode() for number in range(5000)]


def write_counts(
    arrivals: Arrivals, broker: BrokerProcess, topic: str, checkpoint: Path, **options: str
) -> None:
    """Counts by value, those that changed."""
    changed = arrivals.stream().groupBy("value").count()
    finish(
        to_topic(
            changed.selectExpr("value as key", "cast(count as string) as value"),
            broker.address,
            topic,
            checkpoint=str(checkpoint),
            mode="update",
            trigger=NOW,
            options=options,
        )
    )


def test_a_stream_goes_into_a_topic_and_counts_that_changed_do_too(
    spark: "SparkSession", broker: BrokerProcess, tmp_path: Path
) -> None:
    topic, counts = make_topic(broker.address), make_topic(broker.address)
    arrivals = Arrivals(spark, tmp_path / "in", "value string")
    for word in ("a", "b", "a"):
        arrivals.add([{"value": word}])
    finish(
        to_topic(
            arrivals.stream(),
            broker.address,
            topic,
            checkpoint=str(tmp_path / "c"),
            trigger=NOW,
        )
    )
    assert sorted(row["value"] for row in read(spark, broker, topic)) == [b"a", b"a", b"b"]
    write_counts(arrivals, broker, counts, tmp_path / "c2")
    updates = [(row["key"], row["value"]) for row in read(spark, broker, counts)]
    assert updates == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


@pytest.mark.slow
def test_a_stream_with_transactions_is_in_the_topic_once_whatever_is_replayed(
    spark: "SparkSession", broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker.address, partitions=2)
    arrivals = Arrivals(spark, tmp_path / "in", "value string")
    sent = []
    for number in range(4):
        sent += [f"{number}-{row}".encode() for row in range(20)]
        arrivals.add([{"value": f"{number}-{row}"} for row in range(20)])
        rows = arrivals.stream().repartition(number + 1, F.rand())
        finish(
            to_topic(
                rows,
                broker.address,
                topic,
                checkpoint=str(tmp_path / "c"),
                trigger=NOW,
                options={"transactionalIdPrefix": topic},
            )
        )
        assert lose_last_commit(tmp_path / "c") == number
    assert sorted(row["value"] for row in read(spark, broker, topic)) == sorted(sent)


def test_counts_that_changed_are_in_the_topic_once(
    spark: "SparkSession", broker: BrokerProcess, tmp_path: Path
) -> None:
    """`update` goes through foreachBatch, where a batch is written by a batch's writer."""
    topic = make_topic(broker.address)
    arrivals = Arrivals(spark, tmp_path / "in", "value string")
    for word in ("a", "b", "a"):
        arrivals.add([{"value": word}])
    for _ in range(2):
        write_counts(arrivals, broker, topic, tmp_path / "c", transactionalIdPrefix=topic)
        lose_last_commit(tmp_path / "c")
    updates = [(row["key"], row["value"]) for row in read(spark, broker, topic)]
    assert updates == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


def test_a_batch_that_is_not_part_of_a_stream_has_no_transactions(
    spark: "SparkSession", broker: BrokerProcess
) -> None:
    topic = make_topic(broker.address)
    rows, options = spark.sql("select 'x' as value"), {"transactionalIdPrefix": topic}
    with pytest.raises(PySparkException, match="not part of a streaming query"):
        to_topic(rows, broker.address, topic, options=options)


def test_bad_records_keep_their_bytes_and_say_where_they_came_from_and_why(
    spark: "SparkSession", broker: BrokerProcess
) -> None:
    topic = make_topic(broker.address)
    bad = spark.createDataFrame(
        [("orders", 2, 77, bytearray(b"\xff{"), "not JSON", None, AT)],
        "topic string, partition int, offset long, value binary, reason string, key binary, "
        "timestamp timestamp",
    )
    dead_letter(bad, broker.address, topic, pipeline="clean-orders")
    (found,) = read(spark, broker, topic)
    assert found["value"] == b"\xff{"
    assert {header["key"]: header["value"] for header in found["headers"]} == {
        "suwi.dead.topic": b"orders",
        "suwi.dead.partition": b"2",
        "suwi.dead.offset": b"77",
        "suwi.dead.timestamp": b"1767225600123",
        "suwi.dead.reason": b"not JSON",
        "suwi.dead.pipeline": b"clean-orders",
    }
    with pytest.raises(ValueError, match="no column `offset`"):
        dead_letter(bad.drop("offset"), broker.address, topic)


def test_a_batch_that_is_saved_without_a_mode_is_refused_with_the_mode_to_use(
    spark: "SparkSession", broker: BrokerProcess
) -> None:
    """Spark does not ask the sink: the words are its own, and the pipeline adds the call."""
    rows = spark.sql("select 'x' as value").write.format("suwi").option("topic", "t")
    with pytest.raises(PySparkException, match='use either the "Append"') as refused:
        rows.option("kafka.bootstrap.servers", broker.address).save()
    assert failure_of(refused.value).text.endswith(": use mode('append')")


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("'x' as key", {"topic": "t"}, "there is no column `value`"),
        ("'x' as value", {}, "no topic: set option 'topic'"),
        ("1 as value", {"topic": "t"}, "column `value` is int: allowed: string or binary"),
        ("'x' as value", {"topic": "t", "subscribe": "t"}, "'subscribe' is for reading"),
        ("'x' as value", {"topic": "t", "kafka.ack": "1"}, "did you mean 'kafka.acks'"),
        ("'x' as value", {"topic": "t", "kafka.acks": "2"}, "kafka.acks=2: allowed: all, 1, 0"),
        ("'x' as value", {"topic": "t", "kafka.linger.ms": "soon"}, "a whole number from 0 on"),
        ("'x' as value", {"topic": "t", "kafka.compression.type": "zip"}, "allowed: none, gzip"),
        ("'x' as value", {"topic": "t", "kafka.transactional.id": "me"}, "exactly once"),
        ("'x' as value, 't' as topic", {"transactionalIdPrefix": "p"}, "needs option 'topic'"),
        (
            "'x' as value",
            {"topic": "t", "transactionalIdPrefix": "p", "kafka.acks": "1"},
            "needs kafka.acks=all",
        ),
        ("'x' as value", {"topic": "some", "transactionalIdPrefix": "p"}, "does not exist"),
        ("'x' as value, cast(null as string) as topic", {}, "a row has no topic"),
        ("'x' as value, 7 as partition", {"topic": "some"}, "does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    spark: "SparkSession",
    broker: BrokerProcess,
    columns: str,
    options: dict[str, str],
    complaint: str,
) -> None:
    with pytest.raises(PySparkException, match=complaint):
        to_topic(spark.sql(f"select {columns}"), broker.address, options=options)
