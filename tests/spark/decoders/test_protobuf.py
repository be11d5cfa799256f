"""Protobuf messages as rows: by a descriptor that protoc wrote, or by a registry."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("google.protobuf")

import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)

from suwi.decoders.errors import BadRecord, CannotDecode
from suwi.decoders.registry import Registry
from suwi.spark.decoders.protobuf import ProtobufFormat, protobuf_format
from tests.decoders.fake_registry import FakeRegistry, running_registry

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    word: getattr(FIELD, f"TYPE_{word.upper()}")
    for word in "double float int32 sint64 uint32 uint64 bool string bytes".split()
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running_registry() as running:
        yield running


def add_field(message: Any, name: str, kind: str, *, repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=len(message.field) + 1)
    field.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type = FIELD.TYPE_ENUM if kind.startswith("enum ") else FIELD.TYPE_MESSAGE
        field.type_name = kind.removeprefix("enum ")
    return field


def file_of(name: str, package: str, *imports: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.extend(imports)
    return file


def simple_file() -> Any:
    file = file_of("order.proto", "shop")
    order = file.message_type.add(name="Order")
    add_field(order, "id", "sint64")
    add_field(order, "note", "string")
    refund = file.message_type.add(name="Refund")
    add_field(refund, "id", "sint64")
    add_field(refund.nested_type.add(name="Part"), "cents", "sint64")
    return file


def files_bytes(*files: Any) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def message_class(name: str, *files: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def plain(message: str, *files: Any) -> ProtobufFormat:
    return protobuf_format(message, files_bytes(*files), None, None, False)


def with_registry(registry: FakeRegistry, message: Any = True) -> ProtobufFormat:
    return protobuf_format(message, None, Registry(registry.url), "orders-value", True)


def register(registry: FakeRegistry, file: Any, subject: str = "orders-value", **more: Any) -> int:
    serialized = file.SerializeToString()
    return registry.register(subject, "syntax…", "PROTOBUF", serialized=serialized, **more)


def framed(schema_id: int, indexes: bytes, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + indexes + body


def decode(form: ProtobufFormat, value: bytes) -> dict[str, Any]:
    rows = pa.array([form.open()(value)], pa.struct(list(form.schema))).to_pylist()
    row: dict[str, Any] = rows[0]
    return row


def test_a_message_becomes_a_row() -> None:
    form = plain("shop.Order", simple_file())
    assert form.schema == pa.schema([("id", pa.int64()), ("note", pa.string())])
    order = message_class("shop.Order", simple_file())(id=-7, note="quick")
    assert decode(form, order.SerializeToString()) == {"id": -7, "note": "quick"}
    assert decode(form, b"") == {"id": 0, "note": ""}  # proto3: what is not there has its default


def test_every_type_has_its_column() -> None:
    file = file_of(
        "all.proto",
        "shop",
        "google/protobuf/timestamp.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/wrappers.proto",
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    add_field(file.message_type.add(name="Line"), "sku", "string")
    every = file.message_type.add(name="All")
    for word in SCALARS:
        add_field(every, f"a_{word}", word)
    add_field(every, "state", "enum .shop.State")
    add_field(every, "line", ".shop.Line")
    add_field(every, "absent", ".shop.Line")
    add_field(every, "lines", ".shop.Line", repeated=True)
    add_field(every, "numbers", "sint64", repeated=True)
    add_field(every, "at", ".google.protobuf.Timestamp")
    add_field(every, "took", ".google.protobuf.Duration")
    add_field(every, "maybe", ".google.protobuf.StringValue")
    add_field(every, "maybe_not", ".google.protobuf.StringValue")
    entry = every.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    add_field(entry, "key", "string").name = "key"
    add_field(entry, "value", "sint64").name = "value"
    add_field(every, "tags", ".shop.All.TagsEntry", repeated=True)
    optional = add_field(every, "unset", "sint64")
    optional.proto3_optional, optional.oneof_index = True, 0
    every.oneof_decl.add(name="_unset")

    known = []
    for word in ("timestamp", "duration", "wrappers"):
        proto = descriptor_pb2.FileDescriptorProto()
        module = __import__(f"google.protobuf.{word}_pb2", fromlist=["DESCRIPTOR"])
        module.DESCRIPTOR.CopyToProto(proto)
        known.append(proto)
    message = message_class("shop.All", *known, file)(
        a_double=0.1,
        a_float=0.5,
        a_int32=-1,
        a_sint64=-2,
        a_uint32=2**32 - 1,
        a_uint64=2**64 - 1,
        a_bool=True,
        a_string="é",
        a_bytes=b"\xff",
        state=1,
        line={"sku": "x"},
        lines=[{"sku": "y"}, {"sku": "z"}],
        numbers=[1, 2],
        tags={"one": 1},
        maybe={"value": ""},
    )
    message.at.FromJsonString("2026-01-02T03:04:05.000006Z")
    message.took.FromJsonString("-1.5s")
    # The descriptor need not contain Google's own types.
    assert decode(plain("shop.All", file), message.SerializeToString()) == {
        "a_double": 0.1,
        "a_float": 0.5,
        "a_int32": -1,
        "a_sint64": -2,
        "a_uint32": 2**32 - 1,
        "a_uint64": Decimal(2**64 - 1),
        "a_bool": True,
        "a_string": "é",
        "a_bytes": b"\xff",
        "state": "PAID",
        "line": {"sku": "x"},
        "absent": None,
        "lines": [{"sku": "y"}, {"sku": "z"}],
        "numbers": [1, 2],
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "took": timedelta(seconds=-1.5),
        "maybe": "",
        "maybe_not": None,
        "tags": [("one", 1)],
        "unset": None,
    }


def test_an_enum_value_that_is_not_known_yet_is_its_number() -> None:
    file = file_of("e.proto", "shop")
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    add_field(file.message_type.add(name="Order"), "state", "enum .shop.State")
    form = plain("shop.Order", file)
    assert decode(form, b"\x08\x07") == {"state": "7"}


def test_other_bytes_are_bad_records() -> None:
    decoder = plain("shop.Order", simple_file()).open()
    for value in (b"\xff", b'{"id": 1}', b"\x12\x7fshort"):
        with pytest.raises(BadRecord, match=r"not a Protobuf message shop\.Order"):
            decoder(value)


def test_a_descriptor_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "orders.desc").write_bytes(files_bytes(simple_file()))
    form = protobuf_format("shop.Order", str(tmp_path / "orders.desc"), None, None, False)
    assert form.schema.names == ["id", "note"]
    with pytest.raises(CannotDecode, match=r"gone\.desc: No such file"):
        protobuf_format("shop.Order", "gone.desc", None, None, False)


def test_a_message_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        CannotDecode, match=r"no message 'shop\.Ordre'.*: shop\.Order, shop\.Refund"
    ):
        plain("shop.Ordre", simple_file())


def test_what_is_no_descriptor_is_refused() -> None:
    with pytest.raises(CannotDecode, match="not what protoc"):
        protobuf_format("shop.Order", b"\xff\xff", None, None, False)
    with pytest.raises(CannotDecode, match="must name the message"):
        protobuf_format(True, b"", None, None, False)
    with pytest.raises(CannotDecode, match="in a descriptor, or in a registry"):
        protobuf_format("shop.Order", None, None, None, False)


def test_a_descriptor_without_its_imports_is_refused() -> None:
    file = file_of("order.proto", "shop", "money.proto")
    add_field(file.message_type.add(name="Order"), "price", ".shop.Money")
    with pytest.raises(CannotDecode, match="include_imports"):
        plain("shop.Order", file)


def test_a_message_that_contains_itself_is_refused() -> None:
    file = file_of("tree.proto", "shop")
    add_field(file.message_type.add(name="Tree"), "left", ".shop.Tree")
    with pytest.raises(CannotDecode, match=r"shop\.Tree contains itself"):
        plain("shop.Tree", file)


# -- with a registry -----------------------------------------------------------------------------


def test_the_registry_alone_is_enough(registry: FakeRegistry) -> None:
    schema_id = register(registry, simple_file())
    form = with_registry(registry)
    assert form.message == "shop.Order"  # the first of the file
    order = message_class("shop.Order", simple_file())(id=7, note="x").SerializeToString()
    for indexes in (b"\0", b"\x02\x00"):  # two ways to say: the first message
        assert decode(form, framed(schema_id, indexes, order)) == {"id": 7, "note": "x"}


def test_another_message_of_the_same_schema_is_bad_where_one_is_wanted(
    registry: FakeRegistry,
) -> None:
    schema_id = register(registry, simple_file())
    decoder = with_registry(registry).open()
    with pytest.raises(BadRecord, match=r"it is a message shop\.Refund, not shop\.Order"):
        decoder(framed(schema_id, b"\x02\x02", b""))
    with pytest.raises(BadRecord, match=r"message \[9\], which the schema has not"):
        decoder(framed(schema_id, b"\x02\x12", b""))
    for cut in (b"", b"\xff\xff\xff\xff\xff\xff", b"\x01", b"\x02\x01", b"\x7e"):
        with pytest.raises(BadRecord, match="header"):
            decoder(framed(schema_id, cut, b""))


def test_a_message_within_a_message_can_be_wanted(registry: FakeRegistry) -> None:
    schema_id = register(registry, simple_file())
    form = with_registry(registry, "shop.Refund.Part")
    assert decode(form, framed(schema_id, b"\x04\x02\x00", b"\x08\x0a")) == {"cents": 5}


def test_schemas_that_it_builds_on_are_fetched(registry: FakeRegistry) -> None:
    money = file_of("whatever.proto", "shop")
    add_field(money.message_type.add(name="Money"), "cents", "sint64")
    order = file_of("", "shop", "shop/money.proto", "google/protobuf/timestamp.proto")
    message = order.message_type.add(name="Order")
    add_field(message, "price", ".shop.Money")
    add_field(message, "at", ".google.protobuf.Timestamp")
    register(registry, money, "money")
    schema_id = register(registry, order, references=[("shop/money.proto", "money", 1)])
    form = with_registry(registry)
    moment = timestamp_pb2.Timestamp(seconds=1).SerializeToString()
    body = b"\x0a\x02\x08\x0a" + b"\x12" + bytes([len(moment)]) + moment
    found = decode(form, framed(schema_id, b"\0", body))
    assert found == {"price": {"cents": 5}, "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}


def test_a_registry_that_knows_only_text_needs_a_descriptor_beside_it(
    registry: FakeRegistry,
) -> None:
    registry.knows_serialized = False
    schema_id = register(registry, simple_file())
    with pytest.raises(CannotDecode, match="as text only: name a descriptor"):
        with_registry(registry)
    files = files_bytes(simple_file())
    form = protobuf_format("shop.Order", files, Registry(registry.url), None, True)
    assert decode(form, framed(schema_id, b"\0", b"\x08\x0a")) == {"id": 5, "note": ""}


def test_another_kind_of_schema_is_refused(registry: FakeRegistry) -> None:
    schema_id = registry.register("orders-value", '"string"')
    with pytest.raises(CannotDecode, match="is AVRO, not PROTOBUF"):
        with_registry(registry)
    files = files_bytes(simple_file())
    decoder = protobuf_format("shop.Order", files, Registry(registry.url), None, True).open()
    with pytest.raises(BadRecord, match="is AVRO, not PROTOBUF"):
        decoder(framed(schema_id, b"\0", b""))
