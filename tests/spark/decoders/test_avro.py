"""Avro records as rows: by a given schema, or by the ones in a registry."""

import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")

import fastavro
import pyarrow as pa

from suwi.decoders.errors import (
    BadRecord,
    CannotDecode,
    RegistryUnavailable,
)
from suwi.decoders.registry import Registry
from suwi.spark.decoders.avro import AvroFormat, avro_format
from suwi.spark.decoders.in_python import decode_values
from tests.decoders.fake_registry import FakeRegistry, running_registry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "scale": 2}
ORDER = record(field("id", "long"), field("note", ["null", "string"], default=None))


def encoded(schema: dict[str, Any], row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), row)
    return stream.getvalue()


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


def plain(schema: Any) -> AvroFormat:
    return avro_format(schema, None, None, False)


def with_registry(registry: FakeRegistry, schema: Any = True, **login: str) -> AvroFormat:
    return avro_format(schema, Registry(registry.url, **login), "orders-value", True)


def decode(form: AvroFormat, value: bytes) -> dict[str, Any]:
    """The row as Arrow takes it, so a value that has no place in its column is noticed."""
    rows = pa.array([form.open()(value)], pa.struct(list(form.schema))).to_pylist()
    row: dict[str, Any] = rows[0]
    return row


def test_a_record_becomes_a_row() -> None:
    form = plain(ORDER)
    assert form.schema == pa.schema([("id", pa.int64()), ("note", pa.string())])
    assert decode(form, encoded(ORDER, {"id": 7, "note": "quick"})) == {"id": 7, "note": "quick"}
    assert decode(form, encoded(ORDER, {"id": 7, "note": None})) == {"id": 7, "note": None}


def test_every_type_has_its_column() -> None:
    line = record(
        field("sku", "string"), field("tags", {"type": "map", "values": "int"}), name="Line"
    )
    schema = record(
        field("b", "boolean"),
        field("i", "int"),
        field("f", "float"),
        field("d", "double"),
        field("raw", "bytes"),
        field("fixed", {"type": "fixed", "name": "Four", "size": 4}),
        field("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}),
        field("day", {"type": "int", "logicalType": "date"}),
        field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        field("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        field("uuid", {"type": "string", "logicalType": "uuid"}),
        field("clock", {"type": "int", "logicalType": "time-millis"}),
        field("lines", {"type": "array", "items": line}),
        field("first", ["null", "Line"]),
        field("wide", ["int", "long"]),
    )
    row = {
        "b": True,
        "i": -1,
        "f": 0.5,
        "d": 0.1,
        "raw": b"\0\xff",
        "fixed": b"abcd",
        "state": "PAID",
        "day": date(2026, 2, 28),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - of no zone
        "price": Decimal("12.34"),
        "uuid": "00000000-0000-0000-0000-00000000002a",
        "clock": 1000,
        "lines": [{"sku": "x", "tags": {"a": 1}}],
        "first": {"sku": "y", "tags": {}},
        "wide": 1 << 40,
    }
    plain_clock = json.loads(json.dumps(schema).replace(', "logicalType": "time-millis"', ""))
    found = decode(plain(schema), encoded(plain_clock, row))
    assert found == {
        **row,
        "lines": [{"sku": "x", "tags": [("a", 1)]}],
        "first": {"sku": "y", "tags": []},
    }


def test_a_schema_that_is_no_record_is_one_column() -> None:
    form = plain('{"type": "string"}')
    assert decode(form, encoded({"type": "string"}, "hello")) == {"value": "hello"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not an Avro record of this schema"),
        (b"\x0e", "not an Avro record of this schema"),
        (encoded(ORDER, {"id": 7, "note": "x"}) + b"more", "4 bytes too many"),
        (b"\x0e\x02\x7fx", "not an Avro record of this schema"),
        (b"\x0e\x02\x04\xff\xfe", "not an Avro record of this schema"),
        (b"\x0e\x08", "not an Avro record of this schema"),
    ],
)
def test_other_bytes_are_bad_records(value: bytes, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        plain(ORDER).open()(value)


def test_a_schema_may_come_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    assert plain(str(file)).schema.names == ["id", "note"]
    with pytest.raises(CannotDecode, match=r"gone\.avsc"):
        plain("gone.avsc")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "not JSON"),
        ({"type": "record", "name": "X", "fields": [{"name": "a", "type": "nope"}]}, "nope"),
        ({"type": "record", "fields": []}, "not understood"),
        (record(field("me", ["null", "Order"])), "record Order contains itself"),
        (record(field("u", ["string", "long"])), "union of several types"),
        (record(), "no fields"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(CannotDecode, match=problem):
        plain(schema)


def test_a_value_that_has_no_place_in_its_column_is_one_bad_row_not_a_failed_batch() -> None:
    schema = record(field("price", {**DECIMAL, "precision": 4}))
    large = record(field("price", {**DECIMAL, "precision": 9}))
    values = [encoded(large, {"price": Decimal(price)}) for price in ("1.00", "1234567.00")]
    rows = decode_values(pa.array([values[0], None, values[1]]), plain(schema)).to_pylist()
    assert rows[:2] == [{"price": Decimal("1.00"), "__reason": None}, None]
    assert rows[2]["__reason"].startswith("field 'price' does not fit into DECIMAL(4,2): ")


def test_a_value_inside_that_does_not_fit_is_named_by_its_path() -> None:
    def lines(digits: int) -> dict[str, Any]:
        line = record(field("price", {**DECIMAL, "precision": digits}), name="Line")
        return record(field("lines", {"type": "array", "items": {"type": "map", "values": line}}))

    value = encoded(lines(9), {"lines": [{"a": {"price": Decimal("1234567.00")}}]})
    (row,) = decode_values(pa.array([value]), plain(lines(4))).to_pylist()
    assert row["__reason"].startswith("field 'lines.price' does not fit into DECIMAL(4,2): ")


@pytest.mark.parametrize("kind", ["timestamp-millis", "local-timestamp-micros", "date"])
def test_a_moment_beyond_the_calendar_is_a_value_of_its_column(kind: str) -> None:
    """What is too far away is then said with the column."""
    plain_type = "int" if kind == "date" else "long"
    number = {"date": 4_000_000, "timestamp-millis": 10**15}.get(kind, 10**18)
    schema = record(field("at", {"type": plain_type, "logicalType": kind}))
    value = encoded(record(field("at", plain_type)), {"at": number})
    (found,) = pa.array([plain(schema).open()(value)], pa.struct(list(plain(schema).schema)))
    factor = 1000 if kind.endswith("millis") else 1
    assert found["at"].value == number * factor
    if kind == "timestamp-millis":
        value = encoded(record(field("at", "long")), {"at": 2**62})
        (row,) = decode_values(pa.array([value]), plain(schema)).to_pylist()
        assert row["__reason"].startswith("field 'at' does not fit into TIMESTAMP: ")


def test_the_unit_of_a_moment_is_that_of_its_writer(registry: FakeRegistry) -> None:
    millis, micros = (
        record(field("at", {"type": "long", "logicalType": f"timestamp-{unit}"}))
        for unit in ("millis", "micros")
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
    ids = [registry.register("orders-value", json.dumps(one)) for one in (millis, micros)]
    form = with_registry(registry)
    for id_, schema in zip(ids, (millis, micros), strict=True):
        assert decode(form, framed(id_, encoded(schema, {"at": at}))) == {"at": at}


# -- with a registry -----------------------------------------------------------------------------


def test_records_are_read_with_the_schema_they_were_written_with(registry: FakeRegistry) -> None:
    old = record(field("id", "int"))
    old_id = registry.register("orders-value", json.dumps(old))
    new_id = registry.register("orders-value", json.dumps(ORDER))
    form = with_registry(registry)
    assert form.schema.names == ["id", "note"]  # the newest says which columns there are
    assert decode(form, framed(old_id, encoded(old, {"id": 7}))) == {"id": 7, "note": None}
    found = decode(form, framed(new_id, encoded(ORDER, {"id": 8, "note": "x"})))
    assert found == {"id": 8, "note": "x"}


def test_a_writer_whose_record_contains_itself_makes_a_bad_record(registry: FakeRegistry) -> None:
    """fastavro overflows its stack on a value that is nested deeply, and ends the process."""
    tree = record(field("id", "long"), field("left", ["null", "Order"], default=None))
    schema_id = registry.register("orders-value", json.dumps(tree))
    decoder = with_registry(registry, ORDER).open()
    deep = b"\x02\x02" * 1_000_000 + b"\x02\x00"
    with pytest.raises(BadRecord, match=f"schema {schema_id}: record Order contains itself"):
        decoder(framed(schema_id, deep))


def test_a_schema_is_asked_for_once(registry: FakeRegistry) -> None:
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    form = with_registry(registry, ORDER)
    for number in range(100):
        decode(form, framed(schema_id, encoded(ORDER, {"id": number, "note": None})))
    assert registry.asked == [f"/schemas/ids/{schema_id}"]


def test_an_id_that_the_registry_does_not_know_is_a_bad_record(registry: FakeRegistry) -> None:
    decoder = with_registry(registry, ORDER).open()
    for _ in range(100):
        with pytest.raises(BadRecord, match="has no schema 4711"):
            decoder(framed(4711, b""))
    assert len(registry.asked) == 1  # not once for each


def test_a_registry_that_fails_is_no_fault_of_the_record(registry: FakeRegistry) -> None:
    decoder = with_registry(registry, ORDER).open()
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    value = framed(schema_id, encoded(ORDER, {"id": 1, "note": None}))
    registry.failing = 503
    with pytest.raises(RegistryUnavailable, match="answers 503"):
        decoder(value)
    registry.failing = None
    assert decoder(value)["id"] == 1


def test_without_the_header_a_record_is_bad(registry: FakeRegistry) -> None:
    decoder = with_registry(registry, ORDER).open()
    with pytest.raises(BadRecord, match="the first byte is not 0"):
        decoder(b'{"id": 1}')
    with pytest.raises(BadRecord, match="too short"):
        decoder(b"\0\0")


def test_a_schema_that_does_not_resolve_to_ours_makes_bad_records(registry: FakeRegistry) -> None:
    other = record(field("name", "string"))
    schema_id = registry.register("orders-value", json.dumps(other))
    with pytest.raises(BadRecord, match="not an Avro record of this schema"):
        with_registry(registry, ORDER).open()(framed(schema_id, encoded(other, {"name": "x"})))


def test_a_schema_may_refer_to_others(registry: FakeRegistry) -> None:
    money = record(field("cents", "long"), name="shop.Money")
    order = record(field("price", "shop.Money"), field("paid", ["null", "shop.Money"]))
    registry.register("money", json.dumps(money))
    schema_id = registry.register(
        "orders-value", json.dumps(order), references=[("shop.Money", "money", 1)]
    )
    form = with_registry(registry)
    whole = record(field("price", money), field("paid", ["null", "shop.Money"]))
    body = encoded(whole, {"price": {"cents": 5}, "paid": {"cents": 4}})
    assert decode(form, framed(schema_id, body)) == {"price": {"cents": 5}, "paid": {"cents": 4}}


def test_a_subject_that_is_not_there_is_named(registry: FakeRegistry) -> None:
    with pytest.raises(CannotDecode, match="no subject 'orders-value'"):
        with_registry(registry)


def test_another_kind_of_schema_is_refused(registry: FakeRegistry) -> None:
    registry.register("orders-value", "{}", "JSON")
    with pytest.raises(CannotDecode, match="is JSON, not AVRO"):
        with_registry(registry)


def test_a_password_opens_the_registry_and_is_never_shown(registry: FakeRegistry) -> None:
    registry.password = "hunter2"
    registry.register("orders-value", json.dumps(ORDER))
    form = with_registry(registry, user="reader", password="hunter2")
    assert form.schema.names == ["id", "note"]
    assert "hunter2" not in repr(form)
    with pytest.raises(RegistryUnavailable, match="401") as refused:
        with_registry(registry, user="reader", password="hunter3")
    assert "hunter3" not in str(refused.value)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://u:hunter2@registry"])
def test_an_address_that_cannot_be_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(CannotDecode) as refused:
        Registry(url)
    assert "hunter2" not in str(refused.value)


def test_true_needs_a_registry_and_a_subject() -> None:
    with pytest.raises(CannotDecode, match="give it and a subject"):
        avro_format(True, None, None, False)
