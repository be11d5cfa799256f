"""`decode`: good rows as columns, bad rows with where they come from and why."""

import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from suwi.decoders.confluent import NO_HEADER, TOO_SHORT
from suwi.decoders.errors import CannotDecode
from suwi.spark.row_schema import MICROSECONDS_MS_MAX
from tests.decoders.fake_registry import FakeRegistry, running_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

needs_4_1 = pytest.mark.skipif(
    version("pyspark").startswith("4.0."), reason="Avro and Protobuf need PySpark 4.1"
)
AT = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def rows(spark: "SparkSession", *values: str | bytes | None) -> "DataFrame":
    """A topic's rows, with these values at offsets 0, 1, …"""
    data = [
        (b"k", value.encode() if isinstance(value, str) else value, "orders", 3, offset, AT)
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(data, ROWS)


def decoded(df: "DataFrame", **how: Any) -> tuple[dict[int, Any], dict[int, str]]:
    """Good rows without what decode adds, and the reasons of the bad ones, by offset."""
    from suwi.spark.decoders.decode import decode

    good, bad = decode(df, **how)
    kept = {
        row["_offset"]: tuple(v for k, v in row.asDict(True).items() if not k.startswith("_"))
        for row in good.collect()
    }
    return kept, {row["offset"]: row["reason"] for row in bad.select("offset", "reason").collect()}


def test_good_rows_say_where_they_come_from_and_bad_rows_keep_everything(
    spark: "SparkSession",
) -> None:
    from suwi.spark.decoders.decode import decode

    good, bad = decode(rows(spark, '{"id": 1}', "nope"), json="id BIGINT")
    assert [row.asDict() for row in good.collect()] == [
        {
            "id": 1,
            "_key": b"k",
            "_topic": "orders",
            "_partition": 3,
            "_offset": 0,
            "_timestamp": AT.replace(tzinfo=None),
        }
    ]
    assert [row.asDict() for row in bad.collect()] == [
        {
            "key": b"k",
            "topic": "orders",
            "partition": 3,
            "offset": 1,
            "timestamp": AT.replace(tzinfo=None),
            "value": b"nope",
            "reason": "not valid JSON",
        }
    ]


def test_json_is_strict_about_what_it_does_not_understand(spark: "SparkSession") -> None:
    schema = "id BIGINT NOT NULL, at TIMESTAMP, who STRUCT<name: STRING NOT NULL, age: INT>"
    good, bad = decoded(
        rows(
            spark,
            '{"id": 1, "at": "2026-01-01T00:00:00Z", "who": {"name": "a", "age": 3}, "more": []}',
            '  {"id": 2}\n',
            '{"id": "3"}',
            '{"id": 1.5}',
            '{"id": 9999999999999999999}',
            '{"at": "2026-01-01T00:00:00Z"}',
            '{"id": 6, "at": "yesterday"}',
            '{"id": 7, "who": {"age": 3}}',
            '{"id": 8, "who": {"name": "a", "age": "three"}}',
            "{'id': 9",
            "",
            "[1, 2]",
            "null",
            '{"id": 13} and more',
            b'{"id": 14, "who": {"name": "\xff\xfe"}}',
            None,
        ),
        json=schema,
    )
    assert {offset: row[0] for offset, row in good.items()} == {0: 1, 1: 2}
    assert bad == {
        2: "field 'id' is not of type BIGINT",
        3: "field 'id' is not of type BIGINT",
        4: "field 'id' is not of type BIGINT",
        5: "field 'id' is missing or null",
        6: "field 'at' is not of type TIMESTAMP",
        7: "field 'who.name' is missing or null",
        8: "field 'who.age' is not of type INT",
        9: "not valid JSON",
        10: "the value is empty",
        11: "not a JSON object",
        12: "not a JSON object",
        13: "there is text after the object",
        14: "not text in UTF-8",
        15: "the value is null",
    }


def test_json_that_only_a_lenient_parser_takes_is_bad(spark: "SparkSession") -> None:
    values = [
        "{'id': 0}",
        '{"id": 1, "n": NaN}',
        '{"id": 2, "id": 2}',
        '{"id": 3, "who": {"name": "a", "name": "b"}}',
        '{"id": 4, "at": 1767225600}',
        '{"id": 5, "times": ["2026-01-01T00:00:00Z", 6]}',
        '{"id": 6}{"id": 7}',
        '{"id": 7, "tags": ["a", 1, {}], "n": "x"}',
        '{"id": 8, "ns": [1, "two"]}',
        '{"id": 9, "who": {"born": 7}}',
        '\ufeff{"id": 10}',
    ]
    schema = (
        "id BIGINT, n DOUBLE, at TIMESTAMP, times ARRAY<TIMESTAMP>, tags ARRAY<STRING>, "
        "ns ARRAY<INT>, who STRUCT<name: STRING, born: DATE>"
    )
    good, bad = decoded(rows(spark, *values), json=schema)
    assert list(good) == [10]
    assert bad == {
        0: "not valid JSON",
        1: "not valid JSON",
        2: "a key occurs twice in an object",
        3: "a key occurs twice in an object",
        4: "field 'at' is not of type TIMESTAMP",
        5: "field 'times' is not of type ARRAY<TIMESTAMP>",
        6: "there is text after the object",
        7: "field 'n' is not of type DOUBLE",
        8: "field 'ns' is not of type ARRAY<INT>",
        9: "field 'who.born' is not of type DATE",
    }
    good, bad = decoded(rows(spark, *values), json=schema, lenient=True)
    assert sorted(good) == [0, 1, 2, 3, 4, 5, 6, 10]
    assert bad[7] == "field 'n' is not of type DOUBLE"


def test_times_that_no_sink_can_hold_are_bad_with_their_field(spark: "SparkSession") -> None:
    schema = "id INT, at TIMESTAMP, who STRUCT<born: DATE>, times ARRAY<TIMESTAMP>"
    values = [
        '{"id": 1000, "at": 1772323200000}',
        '{"id": 1, "at": "+55840-01-01T00:00:00Z"}',
        '{"id": 2, "who": {"born": "-0044-03-15"}}',
        '{"id": 3, "times": ["2026-01-01T00:00:00Z", "+12026-01-01T00:00:00Z"]}',
        '{"id": 4, "at": "9999-12-31T23:59:59Z"}',
    ]
    good, bad = decoded(rows(spark, *values), json=schema)
    assert list(good) == [4]
    assert bad == {
        0: "field 'at' is not of type TIMESTAMP",
        1: "field 'at' is not in years 1 to 9999",
        2: "field 'who.born' is not in years 1 to 9999",
        3: "field 'times' is not in years 1 to 9999",
    }
    _, bad = decoded(rows(spark, *values), json=schema, lenient=True)
    assert bad[0] == "field 'at' is not in years 1 to 9999"
    good, bad = decoded(rows(spark, *values[4:]), json=schema, max_future="1 day")
    assert bad == {0: "field 'at' is more than 1 day after the record's time"}


def test_the_future_begins_at_the_record_and_not_when_it_is_looked_at(
    spark: "SparkSession",
) -> None:
    """Good and bad rows are two queries, and a batch may be run again later."""
    from pyspark.sql import functions as f

    schema = "at TIMESTAMP, days ARRAY<DATE>"
    values = [
        '{"at": "2026-01-01T23:59:59Z"}',
        '{"at": "2026-01-02T00:00:01Z"}',
        '{"days": ["2026-01-01", "2026-01-03"]}',
    ]
    df = rows(spark, *values)
    good, bad = decoded(df, json=schema, max_future="1 day")
    assert list(good) == [0]
    assert bad == {
        1: "field 'at' is more than 1 day after the record's time",
        2: "field 'days' is more than 1 day after the record's time",
    }
    for time in (f.timestamp_millis(f.lit(-1)), f.lit(None).cast("timestamp")):
        good, bad = decoded(df.withColumn("timestamp", time), json=schema, max_future="1 day")
        assert (list(good), bad) == ([0, 1, 2], {})
    with pytest.raises(CannotDecode, match="max_future needs the column timestamp"):
        decoded(df.drop("timestamp"), json=schema, max_future="1 day")


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ({"json": "id BIGINT NOT NULL, n INT"}, "from_json("),
        pytest.param(
            {"avro": {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}},
            "+- ArrowEvalPython",
            marks=needs_4_1,
        ),
    ],
)
def test_values_are_parsed_once(spark: "SparkSession", how: Any, step: str) -> None:
    from suwi.spark.decoders.decode import decode

    good, _ = decode(rows(spark, "{}"), **how)
    plan = good.filter("n > 1")._jdf.queryExecution().executedPlan().toString()
    assert plan.count(step) == 1, plan


def test_what_is_plain_goes_through_no_lambda(spark: "SparkSession") -> None:
    """Spark compiles none, and interprets the whole step."""
    from suwi.spark.decoders.decode import decode

    for part in decode(rows(spark, "{}"), json="id BIGINT NOT NULL, at TIMESTAMP, d DOUBLE"):
        plan = part._jdf.queryExecution().executedPlan().toString()
        assert "lambda" not in plan, plan


def test_fields_that_nobody_selects_are_checked_all_the_same(spark: "SparkSession") -> None:
    from suwi.spark.decoders.decode import decode

    good, _ = decode(rows(spark, '{"id": 1, "n": "x"}', '{"id": 2}'), json="id BIGINT, n INT")
    assert [row.id for row in good.select("id").collect()] == [2]


@pytest.mark.parametrize(
    ("nulls", "good", "bad"),
    [
        ("bad", {0: (1,)}, {1: "the value is null"}),
        ("keep", {0: (1,), 1: (None,)}, {}),
        ("drop", {0: (1,)}, {}),
    ],
)
def test_rows_without_a_value_go_where_they_are_told_to(
    spark: "SparkSession", nulls: str, good: Any, bad: Any
) -> None:
    assert decoded(rows(spark, '{"id": 1}', None), json="id INT", nulls=nulls) == (good, bad)


def test_strings_are_utf8(spark: "SparkSession") -> None:
    good, bad = decoded(rows(spark, "é", "", b"\xff", None), string=True)
    assert good == {0: ("é",), 1: ("",)}
    assert bad == {2: "not text in UTF-8", 3: "the value is null"}


def test_raw_takes_everything(spark: "SparkSession") -> None:
    good, bad = decoded(rows(spark, b"\xff", None), raw=True)
    assert good == {0: (b"\xff",), 1: (None,)}
    assert bad == {}


@pytest.mark.parametrize("how", [{"json": "id INT"}, {"string": True}])
def test_text_without_confluents_header_is_bad_where_it_has_to_be(
    spark: "SparkSession", how: Any
) -> None:
    df = rows(spark, b"\0\0\0\0\7" + b'{"id": 1}', '{"id": 2}', "hello", b"\0", b"", None)
    good, bad = decoded(df, **how, confluent_header=True)
    assert good == {0: (1,) if "json" in how else ('{"id": 1}',)}
    assert bad == {
        1: NO_HEADER,
        2: NO_HEADER,
        3: TOO_SHORT,
        4: TOO_SHORT,
        5: "the value is null",
    }


@pytest.mark.parametrize("nulls", ["bad", "keep"])
def test_a_record_whose_own_time_is_far_away_is_bad(spark: "SparkSession", nulls: Any) -> None:
    """A watermark on `_timestamp` would move by centuries."""
    from pyspark.sql import functions as f

    df = rows(spark, '{"id": 0}', '{"id": 1}', None, '{"at": "2026-01-01T00:00:00Z"}')
    far = f.timestamp_micros(f.lit(MICROSECONDS_MS_MAX * 1000))
    df = df.withColumn("timestamp", f.when(f.col("offset") > 0, far).otherwise(f.col("timestamp")))
    good, bad = decoded(df, json="id INT, at TIMESTAMP", nulls=nulls, max_future="1 day")
    assert list(good) == [0]
    assert bad == dict.fromkeys((1, 2, 3), "the record's time is not in years 1 to 9999")
    assert list(decoded(df, string=True)[1]) == [1, 2, 3]


def test_json_that_spark_would_change_is_bad(spark: "SparkSession") -> None:
    """Texts that its parser takes, and makes something else of."""
    schema = (
        "n DOUBLE, f FLOAT, day DATE, at TIMESTAMP, price DECIMAL(5,2), prices ARRAY<DECIMAL(5,2)>,"
        " s STRUCT<price: DECIMAL(5,2)>"
    )
    values = {
        '{"n": 1e400}': "field 'n' is too large for DOUBLE",
        '{"f": -1e39}': "field 'f' is too large for FLOAT",
        '{"day": "5"}': "field 'day' is not of type DATE",
        '{"at": "12:30"}': "field 'at' is not of type TIMESTAMP",
        '{"at": "T12:30:00Z"}': "field 'at' is not of type TIMESTAMP",
        '{"price": 1.999}': "field 'price' has more decimals than DECIMAL(5,2)",
        '{"price": "1.999"}': "field 'price' has more decimals than DECIMAL(5,2)",
        '{"price": 1e-3}': "field 'price' has more decimals than DECIMAL(5,2)",
        '{"price": 1234.5}': "field 'price' is not of type DECIMAL(5,2)",
        '{"prices": [1, 1.001]}': "field 'prices' has more decimals than ARRAY<DECIMAL(5,2)>",
        '{"s": {"price": 0.005}}': "field 's.price' has more decimals than DECIMAL(5,2)",
    }
    fine = [
        '{"n": 1e300, "f": 0.1, "day": "2026-01-31", "at": " 2026-01-31 12:30:00", "price": 1.50}',
        '{"price": "1.5", "prices": [1.990, 2, null, 1.5e1], "s": {"price": -999.99}, "n": 3}',
        '{"at": "2026-01-31T12:30:00+02:00", "price": 1.2300000, "day": null, "f": null}',
    ]
    good, bad = decoded(rows(spark, *values, *fine), json=schema)
    assert bad == dict(enumerate(values.values()))
    assert sorted(good) == [len(values), len(values) + 1, len(values) + 2]


def test_what_is_not_null_is_there_in_arrays_and_maps_too(spark: "SparkSession") -> None:
    from pyspark.sql import types as t

    schema = t.StructType.fromDDL(
        "a ARRAY<STRUCT<x: INT NOT NULL, y: INT>>, m MAP<STRING, STRUCT<x: INT NOT NULL>>"
    ).add("ns", t.ArrayType(t.IntegerType(), containsNull=False))
    values = {
        '{"a": [{"x": 1}, {}]}': "field 'a.x' is missing or null",
        '{"m": {"k": {"x": null}}}': "field 'm.x' is missing or null",
        '{"ns": [1, null]}': "field 'ns' is missing or null",
    }
    fine = ['{"a": [{"x": 1}, null], "m": {"k": {"x": 1}, "l": null}, "ns": [1]}', '{"a": []}']
    for lenient in (False, True):
        good, bad = decoded(rows(spark, *values, *fine), json=schema, lenient=lenient)
        assert bad == dict(enumerate(values.values()))
        assert sorted(good) == [3, 4]


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}, "default": {}},
    ],
}


@needs_4_1
def test_avro_by_a_registry_in_sparks_workers(
    spark: "SparkSession", registry: FakeRegistry
) -> None:
    fastavro = pytest.importorskip("fastavro")

    def encoded(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(ORDER)), row)
        return struct.pack(">bI", 0, schema_id) + stream.getvalue()

    schema_id = registry.register("orders-value", json.dumps(ORDER))
    first = encoded({"id": 1, "at": AT, "tags": {"a": "b"}})
    df = rows(spark, first, "text", encoded({"id": 2, "at": AT, "tags": {}}), None, first[:-2])
    good, bad = decoded(df, avro=True, registry=registry.url, subject="orders-value")
    at = AT.replace(tzinfo=None)
    assert good == {0: (1, at, {"a": "b"}), 2: (2, at, {})}
    assert list(bad) == [1, 3, 4]
    assert bad[3] == "the value is null"
    good, bad = decoded(df, avro=ORDER, registry=registry.url, nulls="keep")
    assert good[3] == (None, None, None)
    assert list(bad) == [1, 4]


@needs_4_1
def test_protobuf_in_sparks_workers(spark: "SparkSession") -> None:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=4, label=1)  # uint64
    message.field.add(name="note", number=2, type=9, label=1)  # string
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    df = rows(spark, b"\x08\x05\x12\x01x", b"\xff")
    good, bad = decoded(df, protobuf="shop.Order", descriptor=files)
    assert good == {0: (5, "x")}
    assert bad == {1: "not a Protobuf message shop.Order"}


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({}, "with one of json, string, raw, avro, protobuf: none"),
        ({"string": True, "raw": True}, "string, raw"),
        ({"json": "id BIGINT", "nulls": "what"}, "bad, keep or drop"),
        ({"json": "id BIGNT"}, r"not understood: \[UNSUPPORTED_DATATYPE\].*BIGNT"),
        ({"json": "id BIGINT", "max_future": "soon"}, "an interval, as '1 day'"),
        ({"json": "id BIGINT", "max_future": "10 s"}, "an interval, as '1 day'"),
        ({"string": True, "lenient": True}, "lenient is for json"),
        ({"json": "_offset BIGINT"}, "name of a column that decode adds"),
        ({"avro": True}, "give it and a subject"),
        ({"protobuf": "a.B"}, "in a descriptor, or in a registry"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    spark: "SparkSession", how: Any, problem: str
) -> None:
    with pytest.raises(CannotDecode, match=problem):
        decoded(rows(spark, "x"), **how)


@pytest.mark.parametrize(
    "text", ["10 seconds", "1 day", "90 Minutes", "500 milliseconds", "1 week 2 hours", "1 month"]
)
def test_spark_takes_our_intervals_everywhere(spark: "SparkSession", text: str) -> None:
    from suwi.spark.decoders.places import is_interval

    df = rows(spark, "x")
    if not is_interval(text):
        assert text == "1 month"  # Of no fixed length.
        return
    assert df.withWatermark("timestamp", text).columns == df.columns
    assert df.selectExpr(f"timestamp + INTERVAL {text}").count() == 1
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)


@pytest.mark.parametrize("text", ["10 s", "5 min", "1 h", "500 ms", "10seconds", "seconds"])
def test_what_spark_does_not_take_is_no_interval(spark: "SparkSession", text: str) -> None:
    from pyspark.errors import PySparkException

    from suwi.spark.decoders.places import is_interval

    assert not is_interval(text)
    jvm: Any = spark._jvm
    with pytest.raises(PySparkException):
        jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)


def test_a_frame_that_is_no_topics_rows_is_refused(spark: "SparkSession") -> None:
    with pytest.raises(CannotDecode, match="no column topic, partition, offset"):
        decoded(rows(spark, "x").select("value"), raw=True)


@pytest.mark.parametrize("nulls", ["bad", "keep", "drop"])
def test_in_one_pass_good_and_bad_rows_are_the_same(spark: "SparkSession", nulls: str) -> None:
    from suwi.spark.decoders.decode import decode, decode_together
    from suwi.spark.rules import BAD
    from suwi.spark.write import dead_letters

    values = ('{"id": 1}', "nope", None, '{"id": "x"}', "{}", b"\xff", '{"id": 2, "who": "a"}')
    df = rows(spark, *values)
    for how in ({"json": "id BIGINT NOT NULL, who STRING"}, {"string": True}):
        good, bad = decode(df, nulls=nulls, **how)
        both = decode_together(df, pipeline="p", nulls=nulls, **how)
        expected = dead_letters(bad, pipeline="p")
        assert both.filter(f"{BAD} IS NULL").drop(BAD).collect() == good.collect()
        assert both.filter(f"{BAD} IS NOT NULL").select(f"{BAD}.*").collect() == expected.collect()
        once = decode(df, nulls=nulls, read_once=True, **how)
        for one, other in zip(once, (good, bad), strict=True):
            assert one.schema.simpleString() == other.schema.simpleString()
            assert one.collect() == other.collect()
