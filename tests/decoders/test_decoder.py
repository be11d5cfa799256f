"""Keys and values of records as Python values, whatever their bytes are."""

import io
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from suwi.decoders.decoder import FORMATS, Decoded, Decoder, Format, as_json
from suwi.decoders.errors import CannotDecode
from suwi.decoders.limits import BYTES_MAX, DEPTH_MAX, VALUES_MAX
from suwi.decoders.registry import Registry
from tests.decoders.fake_registry import FakeRegistry, running_registry

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
TOO_DEEP = "it is nested more than 100 levels deep"
TOO_MANY = f"it holds more than {VALUES_MAX} values"
NO_TEXT = "not text in UTF-8:"
FIELD = descriptor_pb2.FieldDescriptorProto


class StillClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def now_ns(self) -> int:
        return self.ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


def avro(schema: Any, data: bytes) -> Decoded:
    return Decoder("avro", avro_schema=json.dumps(schema)).decode(data)


def proto_file() -> Any:
    """`shop.Tree` contains itself; it has a name and a moment."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="name", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    tree.field.add(
        name="inner",
        number=2,
        type=FIELD.TYPE_MESSAGE,
        type_name=".shop.Tree",
        label=FIELD.LABEL_REPEATED,
    )
    tree.field.add(
        name="at",
        number=3,
        type=FIELD.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=FIELD.LABEL_OPTIONAL,
    )
    return file


def files_bytes() -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()


def tree(**fields: Any) -> bytes:
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    needed = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(needed)
    pool.Add(needed)
    pool.Add(proto_file())
    new = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Tree"))
    encoded_tree: bytes = new(**fields).SerializeToString()
    return encoded_tree


def protobuf() -> Decoder:
    return Decoder("protobuf", descriptor=files_bytes(), message="shop.Tree")


# -- text, JSON, bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "value", "read_as"),
    [
        (None, None, "null"),
        (b"", "", "text"),
        ("grüße\n".encode(), "grüße\n", "text"),
        (b'{"id": 7}', {"id": 7}, "json"),
        (b" [1, null]", [1, None], "json"),
        (b"[info] started", "[info] started", "text"),
        (b"42", "42", "text"),
        (b"\0\0\0\0\0\0\0*", b"\0\0\0\0\0\0\0*", "bytes"),
        (b"\xff\xfe", b"\xff\xfe", "bytes"),
    ],
)
def test_auto_finds_out_what_a_value_is(data: bytes | None, value: Any, read_as: str) -> None:
    assert Decoder().decode(data) == Decoded(value, read_as)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "data", "expected"),
    [
        ("text", b"\0a", Decoded("\0a", "text")),
        ("text", b"a\xff", Decoded(b"a\xff", "bytes", "", f"{NO_TEXT} byte 0xff at position 1")),
        ("bytes", b"{}", Decoded(b"{}", "bytes")),
        ("json", b"42", Decoded(42, "json")),
        ("json", b"x", Decoded("x", "text", "", "not JSON: Expecting value at position 0")),
        ("json", b"NaN", Decoded("NaN", "text", "", "not JSON: NaN is no number of JSON")),
    ],
)
def test_a_format_that_does_not_fit_is_a_problem_beside_the_value(
    form: Format, data: bytes, expected: Decoded
) -> None:
    assert Decoder(form).decode(data) == expected


@pytest.mark.parametrize("form", ["auto", "json"])
@pytest.mark.parametrize("levels", [DEPTH_MAX + 2, 50_000, 500_000])
def test_deep_json_is_shown_as_text(form: Format, levels: int) -> None:
    data = b"[" * levels + b"]" * levels
    found = Decoder(form).decode(data)
    assert found.value == data.decode()
    assert found.problem in (TOO_DEEP, TOO_MANY)


def test_json_within_the_bounds_is_read() -> None:
    data = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert Decoder().decode(data).read_as == "json"
    long = json.dumps({"text": "x" * 1_000_000}).encode()
    assert Decoder().decode(long).value == {"text": "x" * 1_000_000}


def test_json_of_very_many_values_is_shown_as_text() -> None:
    data = b"[" + b"[]," * VALUES_MAX + b"0]"
    assert Decoder().decode(data).problem == TOO_MANY
    commas = json.dumps({"text": ',"[{' * VALUES_MAX}).encode()
    assert Decoder().decode(commas).value == {"text": ',"[{' * VALUES_MAX}
    assert Decoder("json").decode(b'"' + b'\\"' * 1_000_000 + b",").read_as == "text"


def test_what_is_too_large_is_not_parsed() -> None:
    found = Decoder("json").decode(b"[" + b" " * BYTES_MAX + b"]")
    assert (found.read_as, found.problem) == ("text", f"it is larger than {BYTES_MAX} bytes")


def test_a_number_of_many_digits_is_no_work() -> None:
    found = Decoder("json").decode(b"9" * 1_000_000)
    assert found.read_as == "text"
    assert found.problem.startswith("not JSON: ")


# -- Avro ----------------------------------------------------------------------------------------


def test_every_type_of_avro_is_read_as_fastavro_writes_it() -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
    types: dict[str, tuple[Any, Any]] = {
        "none": ("null", None),
        "yes": ("boolean", True),
        "i": ("int", -(1 << 31)),
        "l": ("long", (1 << 63) - 1),
        "f": ("float", 0.5),
        "d": ("double", 0.1),
        "raw": ("bytes", b"\0\xff"),
        "text": ("string", "grüße"),
        "four": ({"type": "fixed", "name": "Four", "size": 4}, b"abcd"),
        "state": ({"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "PAID"),
        "lines": ({"type": "array", "items": line}, [{"sku": "a"}, {"sku": "b"}]),
        "first": (["null", "Line"], {"sku": "c"}),
        "counts": ({"type": "map", "values": "int"}, {"a": 1, "b": -2}),
        "day": ({"type": "int", "logicalType": "date"}, date(2026, 2, 28)),
        "at": (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
        ),
        "local": (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - of no zone
        ),
        "clock": ({"type": "long", "logicalType": "time-micros"}, time(3, 4, 5, 6)),
        "price": (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-12.30"),
        ),
    }
    schema = {
        "type": "record",
        "name": "All",
        "fields": [{"name": name, "type": kind} for name, (kind, _) in types.items()],
    }
    row = {name: value for name, (_, value) in types.items()}
    assert avro(schema, encoded(schema, row)) == Decoded(row, "avro", "All")


def test_a_moment_beyond_the_calendar_is_a_number() -> None:
    data = encoded("long", 1 << 62)
    for kind in ("timestamp-millis", "timestamp-micros", "time-micros"):
        assert avro({"type": "long", "logicalType": kind}, data).value == 1 << 62


def test_a_value_that_contains_itself_is_read_to_the_bound_and_not_beyond() -> None:
    assert avro(NODE, b"\x02\x02\x00").value == {"next": {"next": {"next": None}}}
    found = avro(NODE, b"\x02" * 1_000_000)
    assert found.read_as == "bytes"
    assert found.problem == TOO_DEEP


def test_a_record_of_itself_without_end_is_no_endless_work() -> None:
    endless = {**NODE, "fields": [{"name": "next", "type": "Node"}]}
    assert avro(endless, b"").problem == TOO_DEEP


def test_items_that_take_no_bytes_are_counted() -> None:
    data = encoded("long", 1 << 60)
    found = avro({"type": "array", "items": "null"}, data)
    assert found.problem == TOO_MANY


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a number is cut off"),
        (b"\xff" * 20, "a number is cut off"),
        (b"\x0e\x04", "branch 2 of 2"),
        (b"\x0e\x02\x08ab", "4 bytes are expected where 2 are left"),
        (b"\x0e\x02\x01ab", "-1 bytes are expected where 2 are left"),
        (b"\x0e\x02\x02\xff", "a string is not in UTF-8"),
        (b"\x0e\x00more", "4 bytes too many"),
    ],
)
def test_bytes_of_something_else_are_no_avro(data: bytes, problem: str) -> None:
    assert avro(ORDER, data).problem == f"not an Avro value of this schema: {problem}"


# -- Protobuf ------------------------------------------------------------------------------------


def test_a_message_is_read_with_what_it_contains() -> None:
    from google.protobuf.timestamp_pb2 import Timestamp

    at = Timestamp(seconds=86_400, nanos=5_000)
    body = tree(name="a", inner=[{"name": "b"}], at={"seconds": at.seconds, "nanos": at.nanos})
    assert protobuf().decode(body) == Decoded(
        {
            "name": "a",
            "inner": [{"name": "b", "inner": []}],
            "at": datetime(1970, 1, 2, 0, 0, 0, 5, UTC),
        },
        "protobuf",
        "shop.Tree",
    )


def test_a_message_that_is_cut_off_or_too_deep_is_bytes() -> None:
    body = tree(name="abc")
    assert protobuf().decode(body[:-1]).problem == "not a Protobuf message shop.Tree"
    for _ in range(1000):
        size, digits = len(body), b""
        while size >= 0x80:
            digits, size = digits + bytes([size & 0x7F | 0x80]), size >> 7
        body = b"\x12" + digits + bytes([size]) + body
    assert protobuf().decode(body).problem == "not a Protobuf message shop.Tree"


def test_a_message_of_very_many_is_counted() -> None:
    found = protobuf().decode(b"\x12\x00" * 500_000)
    assert found.problem == TOO_MANY


def test_a_moment_that_no_calendar_has_is_its_numbers() -> None:
    found = protobuf().decode(tree(at={"seconds": 1 << 60}))
    assert found.value["at"] == {"seconds": 1 << 60, "nanos": 0}


# -- with a registry -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["auto", "avro"])
def test_avro_is_read_by_the_schema_that_its_header_names(
    registry: FakeRegistry, form: Format
) -> None:
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    decoder = Decoder(form, registry=Registry(registry.url))
    value = framed(schema_id, encoded(ORDER, {"id": 7, "note": None}))
    for _ in range(3):
        assert decoder.decode(value) == Decoded(
            {"id": 7, "note": None}, "avro", f"shop.Order, schema {schema_id}"
        )
    assert len(registry.asked) == 1


def test_a_registry_that_redirects_does_not_pass_the_password_on(registry: FakeRegistry) -> None:
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    with running_registry() as front:
        front.moved_to = registry.url
        decoder = Decoder("avro", registry=Registry(front.url, user="reader", password="hunter2"))
        found = decoder.decode(framed(schema_id, encoded(ORDER, {"id": 7, "note": None})))
    assert found.read_as == "avro"
    assert registry.authorizations == [None]


def test_protobuf_and_json_are_read_by_their_headers_too(registry: FakeRegistry) -> None:
    serialized = proto_file().SerializeToString()
    tree_id = registry.register("t", "syntax …", "PROTOBUF", serialized=serialized)
    json_id = registry.register("j", "{}", "JSON")
    decoder = Decoder(registry=Registry(registry.url))
    found = decoder.decode(framed(tree_id, b"\0" + tree(name="a")))
    assert (found.value["name"], found.schema) == ("a", f"shop.Tree, schema {tree_id}")
    assert decoder.decode(framed(json_id, b"[1]")) == Decoded([1], "json", f"schema {json_id}")
    found = decoder.decode(framed(tree_id, b"\x02\x08" + tree(name="a")))
    assert found.problem == "its header names message [4], which the schema has not"
    found = Decoder("avro", registry=Registry(registry.url)).decode(framed(json_id, b"[1]"))
    assert found.problem == f"schema {json_id} is of json, not of avro"


def test_a_registry_that_gives_protobuf_as_text_is_named(registry: FakeRegistry) -> None:
    registry.knows_serialized = False
    schema_id = registry.register("t", "syntax …", "PROTOBUF")
    found = Decoder(registry=Registry(registry.url)).decode(framed(schema_id, b"\0"))
    assert "gives schemas as text only" in found.problem


def test_ids_at_random_do_not_flood_the_registry(registry: FakeRegistry) -> None:
    clock = StillClock()
    decoder = Decoder(registry=Registry(registry.url), clock=clock)
    known = registry.register("orders-value", json.dumps(ORDER))
    value = framed(known, encoded(ORDER, {"id": 7, "note": None}))
    assert decoder.decode(value).read_as == "avro"
    for number in range(1000):
        found = decoder.decode(framed(5000 + number, b"x"))
        assert found.read_as == "bytes"
        assert "registry" in found.problem
    assert len(registry.asked) < 30
    assert decoder.decode(value).read_as == "avro"
    clock.ms += 60_000
    late = registry.register("orders-value", json.dumps(ORDER))
    assert decoder.decode(framed(late, encoded(ORDER, {"id": 8, "note": None}))).value["id"] == 8


def test_a_registry_that_is_down_is_a_problem_and_asked_again_later(
    registry: FakeRegistry,
) -> None:
    clock = StillClock()
    decoder = Decoder(registry=Registry(registry.url), clock=clock)
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    value = framed(schema_id, encoded(ORDER, {"id": 7, "note": None}))
    registry.failing = 503
    assert "answers 503" in decoder.decode(value).problem
    for _ in range(100):
        assert decoder.decode(value).read_as == "bytes"
    assert len(registry.asked) == 1
    registry.failing = None
    clock.ms += 60_000
    assert decoder.decode(value).value["id"] == 7


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[" * 5000 + "]" * 5000,
        '"nope"',
        "7",
        "null",
        '{"type": "fixed", "name": "F", "size": "x"}',
        '{"type": "enum", "name": "E", "symbols": 3}',
        '{"type": "record", "name": "R", "fields": 3}',
        '{"type": "array"}',
        '{"type": {"type": {"type": "string"}}}',
        '{"type": "bytes", "logicalType": "decimal", "precision": "x"}',
        '{"type": "long", "logicalType": ["x"]}',
    ],
)
def test_a_schema_of_nonsense_is_a_problem_of_the_value(
    registry: FakeRegistry, schema: str
) -> None:
    schema_id = registry.register("orders-value", schema)
    found = Decoder("avro", registry=Registry(registry.url)).decode(framed(schema_id, b"\x02x"))
    assert found.problem or found.value is not None or schema == "null"


@pytest.mark.parametrize(
    "fields", [{"references": 7}, {"references": [{}]}, {"id": "x"}, {"schema": 7}]
)
def test_a_registry_that_answers_with_nonsense_is_a_problem(
    registry: FakeRegistry, fields: dict[str, Any]
) -> None:
    schema_id = registry.register("orders-value", json.dumps(ORDER))
    registry.spoil(schema_id, **fields)
    found = Decoder(registry=Registry(registry.url)).decode(framed(schema_id, b"x"))
    assert "registry" in found.problem


def test_schemas_that_refer_to_each_other_are_refused(registry: FakeRegistry) -> None:
    first = registry.register("a", '"b"', references=[("b", "b", 1)])
    registry.register("b", '"a"', references=[("a", "a", 1)])
    found = Decoder(registry=Registry(registry.url)).decode(framed(first, b""))
    assert found.problem == f"schema {first} of the registry refers to itself"


# -- whatever the bytes are ----------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from([None, ORDER, NODE, ["null", "bytes"], "double"]))
def test_no_bytes_are_an_exception(data: bytes, schema: Any) -> None:
    if schema is not None:
        decoders = [Decoder("avro", avro_schema=json.dumps(schema))]
    else:
        decoders = [Decoder("auto"), Decoder("json"), Decoder("text"), Decoder("bytes"), protobuf()]
    for decoder in decoders:
        found = decoder.decode(data)
        json.dumps(as_json(found.value), allow_nan=False).encode()


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_without_a_schema_nothing_can_be_read(form: Format) -> None:
    with pytest.raises(CannotDecode, match="needs a schema"):
        Decoder(form)


def test_a_decoded_value_becomes_json() -> None:
    value = {
        "raw": b"\0",
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "for": timedelta(seconds=1.5),
        "price": Decimal("1.20"),
        "large": float("inf"),
        "half": "a\ud800b",
        "list": [time(1, 2), None],
    }
    assert as_json(value) == {
        "raw": "AA==",
        "at": "2026-01-02T00:00:00+00:00",
        "for": 1.5,
        "price": "1.20",
        "large": "inf",
        "half": "a\ufffdb",
        "list": ["01:02:00", None],
    }


def test_decoders_load_no_columnar_library_and_the_others_when_needed() -> None:
    program = """
import sys
import suwi.decoders.decoder
loaded = {"pyspark", "pyarrow", "numba", "fastavro", "google.protobuf"} & set(sys.modules)
assert not loaded, loaded
sys.modules["fastavro"] = sys.modules["google.protobuf"] = None
sys.modules["google.protobuf.descriptor_pb2"] = None
for form in ("avro", "protobuf"):
    try:
        suwi.decoders.decoder.Decoder(form)
    except suwi.decoders.errors.CannotDecode as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pip install suwi[avro]" in done.stdout
    assert "pip install suwi[protobuf]" in done.stdout


def test_the_formats_are_those_of_the_documents() -> None:
    assert FORMATS == ("auto", "text", "json", "avro", "protobuf", "bytes")
