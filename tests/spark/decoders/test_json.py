"""Plain JSON by the compiled kernel: what it gives for a text is what Spark and the checks give."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suwi.spark.decoders import json_columns, text
from suwi.spark.decoders.decode import decode
from suwi.spark.decoders.json_columns import Kernel, load_kernel, parse_plain, parse_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "id BIGINT NOT NULL, n INT, tiny TINYINT, d DOUBLE, f FLOAT, b BOOLEAN, s STRING, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(5,2), tags ARRAY<STRING>, "
    "ds ARRAY<DOUBLE>, who STRUCT<name: STRING NOT NULL, ns: ARRAY<STRUCT<x: INT, at: TIMESTAMP>>>"
)
NAMES = [*(part.split()[0] for part in SCHEMA.split(", ")), "name", "ns", "x", "more", "iD", ""]
RECORD = "cast(null AS binary) AS key, value, 'orders' AS topic, 0 AS partition, id AS offset"


def kernel() -> Kernel:
    loaded = load_kernel()
    assert loaded is not None
    return loaded


def parsed(schema: str, texts: list[bytes | None], *, is_utc: bool = True) -> pa.Array:
    found = parse_with(kernel(), pa.array(texts, pa.binary()), schema, is_utc=is_utc)
    found.validate(full=True)
    return found


def schema_json(schema: str) -> str:
    return text.json_schema(schema).json()


digits = st.text("0123456789", min_size=1, max_size=22)
numbers = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds("{}{}.{}{}".format, st.sampled_from(["", "-"]), digits, digits, st.just("")),
    st.builds(
        "{}{}.{}e{}".format, st.sampled_from(["", "-"]), digits, digits, st.integers(-400, 400)
    ),
    st.sampled_from(
        "0 -0 -0.0 0e0 1e23 9007199254740993 1E+2 1.5e-7 -1e-0 01 1. .5 +1 - NaN Infinity 0x1 1e "
        "1e+ "
        "123.45 -999.99 1000.00 0.1 1.10 16777217 0.30000000000000004 1e400 4.9e-324".split()
    ),
)
pieces = st.one_of(
    st.text(max_size=3).map(lambda one: json.dumps(one, ensure_ascii=False)[1:-1]),
    st.text(max_size=3).map(lambda one: json.dumps(one)[1:-1]),
    st.sampled_from(
        [
            r"\n",
            r"\/",
            r"\u0000",
            r"\u00e9",
            r"\uD83d\uDe00",
            r"\ud800",
            r"\udc00",
            r"\ud800\u0041",
            r"\q",
            r"\u12",
            "\t",
            "\0",
            "\x1f",
            "\x7f",
            "\u2028",
            "\ufeff",
            "é",
            "😀",
            "\ud800",
            "'",
        ]
    ),
)
strings = st.lists(pieces, max_size=4).map(lambda some: '"' + "".join(some) + '"')
two = st.one_of(st.integers(0, 13), st.integers(0, 99)).map("{:02}".format)
years = st.sampled_from(["2026", "2024", "1900", "0001", "9999", "1582", "0000", "26", "12026"])
days = st.builds("{}-{}-{}".format, years, two, two)
times = st.builds(
    '"{}{}{}:{}:{}{}{}"'.format,
    days,
    st.sampled_from(["T", " ", "t", ""]),
    two,
    two,
    two,
    st.sampled_from(["", ".1", ".123456", ".1234567", ".", ".000001"]),
    st.sampled_from(
        ["", "Z", "+02:00", "-14:00", "+14:30", "-00:00", "z", " Z", "+2", "UTC", "[]"]
    ),
)
words = st.sampled_from(["true", "false", "null", "True", "nul", "falsey", "{}", "[]", "[,]"])
nested = st.sampled_from([1, 60, 62, 63, 64, 65, 600]).map(lambda n: "[" * n + "]" * n)
scalars = st.one_of(numbers, strings, days.map('"{}"'.format), times, words, nested)
spaces = st.sampled_from(["", "", "", " ", "\n\t\r ", "\x0b", "\xa0"])
keys = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from([r"i\u0064", r"mor\u0065", "other"]),
    st.text(max_size=3),
).map(lambda one: one if "\\" in one else json.dumps(one)[1:-1])


def fields(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds('{}"{}"{}:{}{}'.format, spaces, keys, spaces, spaces, values)


def holding(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner,
        st.lists(inner, max_size=4).map(lambda some: "[" + ",".join(some) + "]"),
        st.lists(fields(inner), max_size=4).map(lambda some: "{" + ",".join(some) + "}"),
    )


values = holding(holding(scalars))
fitting = st.one_of(
    st.builds('"n":{}'.format, numbers),
    st.builds('"tiny":{}'.format, st.integers(-130, 130)),
    st.builds('"d":{}'.format, numbers),
    st.builds('"f":{}'.format, numbers),
    st.builds('"b":{}'.format, words),
    st.builds('"s":{}'.format, strings),
    st.builds('"at":{}'.format, times),
    st.builds('"local":{}'.format, times),
    st.builds('"day":"{}"'.format, days),
    st.builds('"price":{}'.format, numbers),
    st.builds('"tags":[{}, {}]'.format, strings, st.one_of(strings, words)),
    st.builds('"ds":[{},{}]'.format, numbers, numbers),
    st.builds(
        '"who":{{"name":{}, "ns": [{{"x":{},"at":{}}}, {}]}}'.format, strings, numbers, times, words
    ),
    st.builds('"more":{}'.format, values),
    fields(values),
)  # fmt: skip
whole = st.lists(fitting, max_size=3).map(lambda some: "{" + ", ".join(['"id": 7', *some]) + "}")
around = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "", "\ufeff", " ", "\ufeff\ufeff", "x"]),
    whole,
    spaces,
    st.sampled_from(["", "", "", "{}", "x", ",", "\0", "\ufeff"]),
)
encoded = st.one_of(whole, whole, around, values).map(
    lambda one: one.encode("utf-8", "surrogatepass")
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A byte is changed, put in or left out."""
    data = draw(encoded)
    at, cut = draw(st.integers(0, len(data))), draw(st.integers(0, 1))
    new = draw(
        st.sampled_from([b"", b'"', b"\\", b"\xff", b"\xc3", b"\xc0\x80", b"\0", b"0", b","])
    )
    return data[:at] + new + data[at + cut :]


hostile = st.one_of(encoded, encoded, damaged())


@pytest.fixture
def exact_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "can_be_plain", lambda _: False)


@pytest.fixture(params=["UTC", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, spark: "SparkSession") -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def policy(spark: "SparkSession", request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the parser of times."""
    name = "spark.sql.legacy.timeParserPolicy"
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Hypothesis makes them one by one; Spark needs them together."""
    found = []

    @settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
    @given(hostile)
    def collect(one: bytes) -> None:
        found.append(one)

    collect()
    return found


@pytest.mark.usefixtures("exact_only")
def test_what_is_plain_is_what_spark_and_the_checks_make_of_it(
    spark: "SparkSession", zone: str, texts: list[bytes]
) -> None:
    df = spark.createDataFrame(list(enumerate(texts)), "id BIGINT, value BINARY")
    good = decode(df.selectExpr(*RECORD.split(", ")), json=SCHEMA).good
    found = parsed(schema_json(SCHEMA), [*texts], is_utc=zone == "UTC")
    names = [field.name for field in found.type if field.name in good.columns]
    table = good.selectExpr("_offset", *names).toArrow()
    exact = {row.pop("_offset"): row for row in table.to_pylist()}
    plain = {number: row for number, row in enumerate(found.to_pylist()) if row is not None}
    assert len(plain) > len(exact) / 3
    for number, row in plain.items():
        assert comparable(row) == comparable(exact.get(number)), texts[number]


def comparable(value: Any) -> Any:
    """Moments in one zone, and -0.0 as another number than 0.0."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return ("moment", (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    return repr(value)


PLAIN = [
    '{"id": 1}',
    ' {"id":1,"n":-5,"tiny":127,"d":1.5e-7,"f":0.1,"b":true,"s":"é\\n\\u00e9\\ud83d\\ude00"}\n',
    '{"id": 1, "at": "2026-01-31T12:00:00.123Z", "local": "2026-01-31 12:00:00"}',
    '{"at": "2026-01-31 12:00:00+02:00", "day": "2024-02-29", "price": -999.99, "id": 2}',
    '{"id": 1, "tags": ["a", null], "ds": [1, 0.30000000000000004, 1e23], "more": {"a": [{}]}}',
    '{"id": 1, "who": {"name": "a", "ns": [{"x": 1, "at": null}, null, {}]}, "s": null}',
]


def test_usual_texts_are_plain(spark: "SparkSession") -> None:
    """Otherwise everything is right, and slow."""
    found = parsed(schema_json(SCHEMA), [one.encode() for one in PLAIN])
    assert [row is not None for row in found.to_pylist()] == [True] * len(PLAIN)


def test_a_text_that_is_not_plain_leaves_nothing_behind(spark: "SparkSession") -> None:
    schema = schema_json("id INT NOT NULL, ds ARRAY<DOUBLE>, tags ARRAY<STRUCT<s: STRING>>")
    fine = b'{"id": 1, "ds": [0.30000000000000004, 2], "tags": [{"s": "\\n"}, null]}'
    late = fine.replace(b"}, null]}", b'}, null], "more": 01}')
    assert len(late) > len(fine)
    rows = [late, fine, None, late, late, fine]
    (one,) = parsed(schema, [fine]).to_pylist()
    assert parsed(schema, rows).to_pylist() == [None, one, None, None, None, one]
    assert parsed(schema, [None, b""]).to_pylist() == [None, None]
    assert parsed(schema, []).to_pylist() == []


def test_texts_of_many_bytes_are_parsed_in_parts(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_json("id INT, tags ARRAY<STRING>")
    texts = [f'{{"id": {i}, "tags": ["a", "{i}"]}}'.encode() for i in range(100)]
    monkeypatch.setattr(json_columns, "_CHUNK_BYTES", 100)
    values = pa.array([b"x", *texts], pa.binary())[1:]
    found = parse_with(kernel(), values, schema, is_utc=False)
    assert found.to_pylist() == [{"id": i, "tags": ["a", str(i)]} for i in range(100)]


def test_what_may_be_too_much_for_a_parser_is_not_plain(spark: "SparkSession") -> None:
    schema = schema_json("id INT")
    texts = [
        b'{"more": ' + b"[" * 63 + b"]" * 63 + b"}",
        b'{"more": ' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"more": "' + b"x" * (1 << 20) + b'"}',
        b"{" + b",".join(b'"a%d": 1' % i for i in range(1024)) + b"}",
        b"{" + b",".join(b'"a%d": 1' % i for i in range(1025)) + b"}",
        b'{"' + b"x" * 2000 + b'": 1}',
    ]
    found = parsed(schema, texts).to_pylist()
    assert [row is not None for row in found] == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    "schema", ["m MAP<STRING, INT>", "id DECIMAL(38,2)", "b BINARY", "v VARIANT", "s VARCHAR(3)"]
)
def test_schemas_of_other_types_are_left_to_spark(spark: "SparkSession", schema: str) -> None:
    assert not json_columns.can_be_plain(text.json_schema(schema))


def test_a_few_texts_are_left_to_spark(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, values = schema_json("id INT"), pa.array([b'{"id": 1}'], pa.binary())
    monkeypatch.setattr(json_columns, "_asked_rows", 0)
    few = parse_plain(values, schema, is_utc=False)
    monkeypatch.setattr(json_columns, "_asked_rows", 10**9)
    many = parse_plain(values, schema, is_utc=False)
    assert (few.to_pylist(), many.to_pylist(), few.type) == ([None], [{"id": 1}], many.type)


def test_many_rows_are_good_and_bad_as_without_the_kernel(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = "id BIGINT NOT NULL, at TIMESTAMP, s STRING"
    value = """CASE id % 40
        WHEN 1 THEN '{}' WHEN 2 THEN 'nope' WHEN 3 THEN '{"id": 1, "id": 2}' WHEN 4 THEN null
        WHEN 5 THEN '{"id": 1} x' WHEN 6 THEN '{"id": 1, "at": 5}' WHEN 7 THEN '{"id": "x"}'
        WHEN 8 THEN '{"id": 1, "at": "2026-01-31T12:00:00"}' WHEN 9 THEN '{"id": 1, "s": [1, 2]}'
        ELSE concat('{"at": "2026-01-31T12:00:00Z", "id": ', id, ', "s": "\\u00e9"}') END"""
    made = spark.range(24_000, numPartitions=1).selectExpr(
        "id", f"cast({value} AS binary) AS value"
    )
    df = made.selectExpr(*RECORD.split(", "))
    found = []
    for is_known in (True, False):
        if not is_known:
            monkeypatch.setattr(text, "can_be_plain", lambda _: False)
        good, bad = decode(df, json=schema)
        found.append((good.collect(), bad.collect()))
    assert found[0] == found[1]
    assert len(found[0][0]) == 24_000 - 7 * 600


@pytest.mark.parametrize("zone", ["Asia/Kathmandu"], indirect=True)
def test_a_moment_without_a_zone_has_the_one_of_the_session_when_it_was_decoded(
    spark: "SparkSession", zone: str
) -> None:
    made = """concat('{"at": "2026-01-31T', if(id % 2 = 0, '12:00:00', '06:15:00Z'), '"}')"""
    df = spark.range(30_000, numPartitions=1).selectExpr("id", f"cast({made} AS binary) AS value")
    good = decode(df.selectExpr(*RECORD.split(", ")), json="at TIMESTAMP").good
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = good.groupBy(good["at"].cast("string")).count().collect()
    assert [tuple(row) for row in found] == [("2026-01-31 06:15:00", 30_000)]


@pytest.mark.parametrize("policy", ["LEGACY"], indirect=True)
@pytest.mark.parametrize(
    ("schema", "name", "value"),
    [
        ("id BIGINT, at TIMESTAMP", "at", "2026-01-31T12:00:00Z"),
        ("id BIGINT, day DATE", "day", "1582-10-10"),
        ("id BIGINT, local TIMESTAMP_NTZ", "local", "1582-10-10T12:00:00"),
    ],
)
def test_times_by_the_legacy_policy_are_the_same_without_the_kernel(
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    schema: str,
    name: str,
    value: str,
) -> None:
    made = f"""cast(concat('{{"id": ', id, ', "{name}": "{value}"}}') AS binary) AS value"""
    df = spark.range(21_000, numPartitions=1).selectExpr("id", made)
    df = df.selectExpr(*RECORD.split(", "))
    found = []
    for is_known in (True, False):
        if not is_known:
            monkeypatch.setattr(text, "can_be_plain", lambda _: False)
        good, bad = decode(df, json=schema)
        found.append((good.selectExpr("_offset", f"string({name})").collect(), bad.collect()))
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", ["EXCEPTION", "CORRECTED", "LEGACY"], indirect=True)
def test_the_plan_has_the_kernel_unless_times_are_parsed_by_the_legacy_policy(
    spark: "SparkSession", capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    from pyspark.sql import functions

    has_kernel = hasattr(functions, "arrow_udf")  # PySpark 4.1
    df = spark.range(1).selectExpr("id", "binary(string(id)) AS value")
    df = df.selectExpr(*RECORD.split(", "))
    for schema, has_times in (("at TIMESTAMP", True), ("day DATE", True), ("id INT", False)):
        decode(df, json=schema).good.explain()
        plan = capsys.readouterr().out
        is_asked_first = has_kernel and (policy != "LEGACY" or not has_times)
        assert ("ArrowEvalPython" in plan) == is_asked_first, schema
        # Spark's own parser is asked in one place, not again for each use of what it gives.
        assert plan.count("from_json") == 1
