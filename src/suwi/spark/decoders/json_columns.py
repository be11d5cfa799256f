"""JSON texts into Arrow columns by the compiled kernel: those that are plain.

`can_be_plain` says of a schema whether the kernel knows its types, `parse_plain` parses values to a
struct that is null where a text is not plain: Spark's parser and the strict checks see to it then.
Invariant: what it gives for a text is what they would give, or null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from suwi.spark.kernel import compiler, load_compiled

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Fewer texts are parsed faster than numba is loaded.
_KERNEL_FROM_ROWS: Final = 20_000
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_DECIMAL_DIGITS_MAX: Final = 18
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}

CORRUPT: Final = "__corrupt"
"""A field that no text fills; Spark's parser has it for texts that it cannot parse."""

_asked_rows = 0
"""Counted over all tasks of this process."""


class Kernel(NamedTuple):
    parse_texts: Callable[..., None]
    gather: Callable[..., None]


@cache
def load_kernel() -> Kernel | None:
    return load_compiled(_compile)


def _compile(*, cached: bool) -> Kernel:
    from suwi.spark.decoders import json_kernel as code

    jit = compiler(cached=cached)
    return Kernel(
        jit(code.parse_texts, code.PARSE_SIGNATURE), jit(code.gather, code.GATHER_SIGNATURE)
    )


def can_be_plain(kind: DataType) -> bool:
    """Whether the kernel knows this type and those inside."""
    from pyspark.sql import types as t

    match kind:
        case t.StructType():
            names = kind.names
            return len(set(names)) == len(names) and all(
                can_be_plain(field.dataType) for field in kind.fields
            )
        case t.ArrayType():
            return can_be_plain(kind.elementType)
        case t.DecimalType():
            return kind.precision <= _DECIMAL_DIGITS_MAX
    simple = (t.StringType(), t.BooleanType(), t.DoubleType(), t.FloatType(), t.DateType())
    times = (t.TimestampType(), t.TimestampNTZType())
    # Not `isinstance`: a string may have a collation or a length.
    return kind in (*simple, *times) or kind.simpleString() in _BITS


def parse_plain(values: pa.Array, schema: str, *, is_utc: bool) -> pa.Array:
    """A struct with the columns of a schema, given as JSON; null where a text is not plain.

    is_utc: a moment that names no zone is in UTC.
    """
    global _asked_rows
    _asked_rows += len(values)
    kernel = load_kernel() if _asked_rows >= _KERNEL_FROM_ROWS else None
    if kernel is None:
        return pa.nulls(len(values), _arrow_type(schema))
    return parse_with(kernel, values, schema, is_utc=is_utc)


@lru_cache(maxsize=64)
def _arrow_type(schema: str) -> pa.DataType:
    from pyspark.sql.types import StructType

    return _as_arrow(StructType.fromJson(json.loads(schema)))


def _as_arrow(kind: DataType) -> pa.DataType:
    # Not PySpark's own function: its arguments differ between releases.
    from pyspark.sql import types as t

    match kind:
        case t.StructType():
            return pa.struct([(field.name, _as_arrow(field.dataType)) for field in kind.fields])
        case t.ArrayType():
            return pa.list_(pa.field("element", _as_arrow(kind.elementType)))
        case t.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    bits = _BITS.get(kind.simpleString())
    if bits is not None:
        return pa.type_for_alias(f"int{bits}")
    kinds = {
        "string": pa.string(),
        "double": pa.float64(),
        "float": pa.float32(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    return kinds[kind.typeName()]


def parse_with(kernel: Kernel, values: pa.Array, schema: str, *, is_utc: bool) -> pa.Array:
    """As `parse_plain`, by this kernel."""
    import numpy as np

    table, kind = _table(schema, is_utc), _arrow_type(schema)
    values = values.cast(pa.binary())
    _, ends_buffer, data_buffer = values.buffers()
    if not len(values) or data_buffer is None:
        return pa.nulls(len(values), kind)
    ends = np.frombuffer(ends_buffer, np.int32)[values.offset : values.offset + len(values) + 1]
    is_there = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    data = np.frombuffer(data_buffer, np.uint8)
    parts, row = [], 0
    while row < len(values):
        # As many texts as have so many bytes, but one at least.
        last = int(np.searchsorted(ends, ends[row] + _CHUNK_BYTES, "right")) - 1
        last = min(max(last, row + 1), len(values))
        part = data[ends[row] : ends[last]], ends[row : last + 1] - ends[row], is_there[row:last]
        parts.append(_Chunk(kernel, table, *part).column(kind, 0))
        row = last
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


class _Table(NamedTuple):
    """A schema as the kernel reads it."""

    nodes: Any
    names: Any
    containers: int


@lru_cache(maxsize=64)
def _table(schema: str, is_utc: bool) -> _Table:
    import numpy as np
    from pyspark.sql import types as t

    from suwi.spark.decoders import json_kernel as code

    columns = code.NODE_COLUMNS
    nodes, names, containers = _node(0), b"", 1
    waiting: list[tuple[int, DataType]] = [(0, t.StructType.fromJson(json.loads(schema)))]
    while waiting:
        at, kind = waiting.pop()
        nodes[at + code.KIND], nodes[at + code.LOW], nodes[at + code.HIGH] = _kernel_kind(
            kind, is_utc
        )
        nodes[at + code.FIRST] = len(nodes)
        if isinstance(kind, t.StructType):
            for field in kind.fields:
                start, names = len(names), names + field.name.encode()
                end = -1 if field.name == CORRUPT else len(names)  # No key is as long.
                waiting.append((len(nodes), field.dataType))
                nodes += _node(nodes[at + code.CONTAINER], field.nullable, start, end)
        elif isinstance(kind, t.ArrayType):
            nodes[at + code.ELEMENTS] = containers
            waiting.append((len(nodes), kind.elementType))
            nodes += _node(containers, kind.containsNull)
            containers += 1
        nodes[at + code.LAST] = len(nodes)
    assert len(nodes) % columns == 0
    return _Table(np.array(nodes, np.int64), np.frombuffer(names or b"\0", np.uint8), containers)


def _node(container: int, nullable: bool = True, start: int = 0, end: int = 0) -> list[int]:
    return [0, 0, 0, start, end, container, 0, int(nullable), 0, 0, 0, 0]


def _kernel_kind(kind: DataType, is_utc: bool) -> tuple[int, int, int]:
    """Its number, and two that say more."""
    from pyspark.sql import types as t

    from suwi.spark.decoders import json_kernel as code

    if isinstance(kind, t.DecimalType):
        return code.DECIMAL, kind.precision - kind.scale, kind.scale
    bits = _BITS.get(kind.simpleString())
    if bits is not None:
        return code.INTEGER, -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    kinds = {
        "struct": code.OBJECT,
        "array": code.ARRAY,
        "string": code.STRING,
        "double": code.DOUBLE,
        "float": code.FLOAT,
        "boolean": code.BOOLEAN,
        "date": code.DATE,
        "timestamp": code.MOMENT_OR_LOCAL if is_utc else code.MOMENT,
        "timestamp_ntz": code.LOCAL_MOMENT,
    }
    return kinds[kind.typeName()], 0, 0


class _Chunk:
    """Texts that are parsed together, and the memory that the kernel filled."""

    def __init__(self, kernel: Kernel, table: _Table, data: Any, ends: Any, is_plain: Any) -> None:
        import numpy as np

        from suwi.spark.decoders import json_kernel as code

        self._kernel, self._data = kernel, data
        self._nodes = table.nodes.copy()
        nodes = self._nodes.reshape(-1, code.NODE_COLUMNS)
        # An element has a byte, and one that ends it.
        room = np.where(nodes[:, code.CONTAINER] == 0, len(is_plain), len(data) // 2 + 1)
        nodes[1:, code.BASE] = np.cumsum(room)[:-1]
        slots = np.empty(int(room.sum()), np.int64)
        doubles, there = slots.view(np.float64), np.zeros(len(slots), np.uint8)
        counts, before = np.zeros((2, table.containers), np.int64)
        extra = np.empty(len(data), np.uint8)
        # The shortest that the kernel cannot make itself is 1e23.
        hard = np.empty(len(data) // 4 * 2 + 2, np.int64)
        used = np.zeros(code.USED, np.int64)
        stack = np.empty(code.DEPTH_MAX * code.FRAME, np.int64)
        filled = slots, doubles, there, counts, before, extra, hard, is_plain, used, stack
        hashes = np.empty(code.NAMES_MAX, np.int64)
        kernel.parse_texts(data, ends, table.names, self._nodes, *filled, hashes)
        self._extra, self._slots, self._there, self._counts = extra, slots, there, counts
        hard_count = int(used[code.HARD])
        if hard_count:
            at, spans = hard[: hard_count * 2].reshape(-1, 2).T
            texts = self._texts(np.ascontiguousarray(spans), np.ones(hard_count, np.uint8))
            doubles[at] = texts.cast(pa.float64()).to_numpy()

    def column(self, kind: pa.DataType, node: int) -> pa.Array:
        import numpy as np

        from suwi.spark.decoders import json_kernel as code

        row = self._nodes[node : node + code.NODE_COLUMNS]
        count, base = int(self._counts[row[code.CONTAINER]]), int(row[code.BASE])
        slots, there = self._slots[base : base + count], self._there[base : base + count]
        missing = count - int(np.count_nonzero(there))
        valid = pa.py_buffer(np.packbits(there, bitorder="little")) if missing else None
        first = int(row[code.FIRST])
        if pa.types.is_struct(kind):
            at = range(first, int(row[code.LAST]), code.NODE_COLUMNS)
            fields = [self.column(field.type, i) for field, i in zip(kind, at, strict=True)]
            return pa.Array.from_buffers(kind, count, [valid], missing, children=fields)
        if pa.types.is_list(kind):
            ends = np.zeros(count + 1, np.int32)
            np.cumsum(np.where(there, slots, 0), out=ends[1:])
            elements = self.column(kind.value_type, first)
            buffers = [valid, pa.py_buffer(ends)]
            return pa.Array.from_buffers(kind, count, buffers, missing, children=[elements])
        if pa.types.is_string(kind):
            texts = self._texts(slots, there)
            return pa.Array.from_buffers(kind, count, [valid, *texts.buffers()[1:]], missing)
        return pa.Array.from_buffers(kind, count, [valid, _numbers(kind, slots)], missing)

    def _texts(self, spans: Any, there: Any) -> pa.Array:
        import numpy as np

        size = int(np.sum(spans & 0xFFFFFFFF, where=there.astype(bool)))
        ends, texts = np.empty(len(spans) + 1, np.int32), np.empty(size, np.uint8)
        self._kernel.gather(self._data, self._extra, spans, there, ends, texts)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
        return pa.Array.from_buffers(pa.string(), len(spans), buffers, 0)


def _numbers(kind: pa.DataType, slots: Any) -> pa.Buffer:
    """The values of a column, as wide as its type."""
    import numpy as np

    if pa.types.is_boolean(kind):
        return pa.py_buffer(np.packbits(slots & 1, bitorder="little"))
    if pa.types.is_decimal(kind):
        wide = np.empty((len(slots), 2), np.int64)
        wide[:, 0], wide[:, 1] = slots, slots >> 63
        return pa.py_buffer(wide)
    if pa.types.is_float32(kind):
        with np.errstate(over="ignore", invalid="ignore"):  # Slots without a value have anything.
            return pa.py_buffer(slots.view(np.float64).astype(np.float32))
    return pa.py_buffer(np.ascontiguousarray(slots.astype(f"i{kind.bit_width // 8}", copy=False)))
