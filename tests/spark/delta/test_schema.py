"""Types that a Delta table can have, and what is said of those that it cannot."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")

from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from suwi.spark.delta.errors import SchemaMismatch
from suwi.spark.delta.schema import check_types, delta_schema, describe, fit
from suwi.spark.options import BadOption, read_table_options
from tests.spark.delta.tables import schema_of


def test_types_that_a_table_cannot_have_are_named_all_at_once() -> None:
    schema = StructType(
        [
            StructField("nothing", NullType()),
            StructField("pause", ArrayType(DayTimeIntervalType())),
            StructField("fine", MapType(StringType(), IntegerType())),
        ]
    )
    with pytest.raises(SchemaMismatch, match=r"`nothing` is void.*`pause` is array<interval"):
        check_types(schema, ())


@pytest.mark.parametrize(
    ("schema", "partition_by", "complaint"),
    [
        ("a long, b binary", ("b",), "`b` is binary: a table cannot be partitioned by it"),
        ("a long, m decimal(3,1)", ("m",), "`m` is decimal.3,1.: a table cannot be partitioned"),
        ("a long", ("day",), "`day` is to partition the table and is not in the data"),
        ("a long", ("a",), "every column is a partition column"),
        ("a long, A long", (), "`a` occurs twice"),
    ],
)
def test_columns_that_cannot_be_are_refused(
    schema: str, partition_by: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(SchemaMismatch, match=complaint):
        check_types(schema_of(schema), partition_by)


def test_whether_nulls_are_possible_does_not_make_types_different() -> None:
    strict = StructType([StructField("a", ArrayType(StringType(), containsNull=False), False)])
    loose = StructType([StructField("a", ArrayType(StringType(), containsNull=True), True)])
    table = delta_schema(loose)
    assert fit(strict, table, merge=False) == (table, table)
    assert delta_schema(strict) == delta_schema(loose)


def test_a_column_that_must_not_be_null_may_not_be_missing() -> None:
    table = schema_of("a long, b long !").jsonValue()
    with pytest.raises(SchemaMismatch, match="`b` must not be null in the table and is missing"):
        fit(schema_of("a long"), table, merge=False)


def nested(**fields: Any) -> StructType:
    return StructType(
        [StructField("s", StructType([StructField(n, k) for n, k in fields.items()]))]
    )


def test_narrower_data_is_written_in_the_tables_type() -> None:
    table = delta_schema(schema_of("a long, b double, c double, d long"))
    data = schema_of("a integer, b integer, c float, d long")
    assert fit(data, table, merge=False) == (table, table)
    inner = nested(x=ArrayType(LongType()))
    assert fit(nested(x=ArrayType(IntegerType())), delta_schema(inner), merge=False).written == (
        delta_schema(inner)
    )


def test_wider_data_is_refused_with_the_way_to_widen_the_table() -> None:
    table = delta_schema(schema_of("a integer, s string"))
    with pytest.raises(SchemaMismatch) as refused:
        fit(schema_of("a long, s long"), table, merge=True)
    assert str(refused.value) == (
        "`a` is integer in the table and long here: suwi.spark.delta.maintenance.widen(path, "
        "{'a': 'long'}) rewrites it; `s` is string in the table and long here"
    )


def test_new_fields_inside_of_structs_are_merged_or_named() -> None:
    table, data = delta_schema(nested(x=LongType())), nested(y=StringType(), x=IntegerType())
    found = fit(data, table, merge=True)
    assert [field["name"] for field in found.merged["fields"][0]["type"]["fields"]] == ["x", "y"]
    assert [field["type"] for field in found.written["fields"][0]["type"]["fields"]] == [
        "string",
        "long",
    ]
    with pytest.raises(SchemaMismatch, match=r"`s\.y` is not in the table \(mergeSchema=true"):
        fit(data, table, merge=False)


def test_types_read_as_people_write_them() -> None:
    kind = StructType([StructField("m", MapType(StringType(), ArrayType(IntegerType())))])
    assert describe(kind.jsonValue()) == "struct<m: map<string, array<integer>>>"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "path is missing"),
        (
            {"path": "/t", "mergSchema": "true"},
            "no option 'mergSchema': did you mean 'mergeSchema'",
        ),
        ({"path": "/t", "mergeSchema": "yes"}, "mergeSchema=yes: allowed: true or false"),
        ({"path": "/t", "targetFileSize": "big"}, "targetFileSize=big"),
        ({"path": "/t", "compression": "rar"}, "compression=rar: allowed: one of snappy"),
        ({"path": "/t", "txnAppId": "me"}, "belong together"),
        ({"path": "/t", "orderBy": "n"}, "orderBy needs keys"),
        ({"path": "/a%20b"}, "cannot have a % in it"),
    ],
)
def test_bad_options_are_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadOption, match=complaint):
        read_table_options(given)


def test_options_are_read_without_regard_to_case_and_secrets_are_not_shown() -> None:
    options = read_table_options(
        {
            "PATH": "s3://bucket/t",
            "partitionby": "a, b",
            "TargetFileSize": "64MB",
            "storage.aws_secret_access_key": "hush",
            "checkpointLocation": "/c",
        }
    )
    assert options.uri == "s3://bucket/t"
    assert options.partition_by == ("a", "b")
    assert options.target_bytes == 64 << 20
    assert options.storage == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in repr(options)


def test_addresses_of_this_machine_become_paths() -> None:
    for path in ("/data/t", "file:///data/t", "file:/data/t"):
        assert read_table_options({"path": path}).uri == "/data/t"
    assert read_table_options({"path": "t"}).uri.startswith("/")
