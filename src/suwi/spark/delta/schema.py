"""The columns of the data against the columns of the table: the same, merged, or refused.

delta-rs writes whatever it is given, so it is here that a table is kept from files that do not
fit it. `check_types` judges the data alone, `fit` against a table, and `arrow_schema` is what the
files have.
Invariant: a column of a file has the table's type, or lacks fields of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from suwi.spark.delta.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PLAIN: Final = frozenset(
    """
    string long integer short byte float double boolean binary date timestamp timestamp_ntz
    """.split()
)
# What a value of a type can become without a loss; long to double where each value allows it.
WIDER: Final = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": ("double",),
    "float": ("double",),
}
_WIDEN: Final = "suwi.spark.delta.maintenance.widen(path, {{{path!r}: {kind!r}}}) rewrites it"
# Not decimal: delta-rs 1.6 cannot read back a partition value below zero.
_PARTITION: Final = _PLAIN - {"binary"}


def delta_schema(data: "StructType") -> dict[str, Any]:
    """The table's schema as Delta writes it: Spark's own JSON, every column nullable.

    A column that happens to have no nulls in one job must not forbid them to the next; Delta's
    own writer does the same.
    """
    fields = [_field(field["name"], field["type"]) for field in data.jsonValue()["fields"]]
    return {"type": "struct", "fields": fields}


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": _nullable(kind), "nullable": True, "metadata": {}}


def _nullable(kind: Any) -> Any:
    """The type without nullability and metadata, for comparison."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = [_field(field["name"], field["type"]) for field in kind["fields"]]
            return {"type": "struct", "fields": fields}
        case "array":
            element = _nullable(kind["elementType"])
            return {"type": "array", "elementType": element, "containsNull": True}
        case "map":
            key, value = _nullable(kind["keyType"]), _nullable(kind["valueType"])
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return kind


def check_types(data: "StructType", partition_by: Sequence[str], of: str = "a Delta") -> None:
    """Raises `SchemaMismatch` for what a table cannot have, every column named."""
    faults = [
        f"`{field['name']}` is {describe(field['type'])}, which {of} table cannot have"
        for field in delta_schema(data)["fields"]
        if not _is_storable(field["type"])
    ]
    names = [name.lower() for name in data.fieldNames()]
    faults += [
        f"`{name}` occurs twice" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    kinds = {field["name"]: field["type"] for field in delta_schema(data)["fields"]}
    for name in partition_by:
        if name not in kinds:
            faults.append(f"`{name}` is to partition the table and is not in the data")
        elif not _is_partition_type(kinds[name]):
            faults.append(
                f"`{name}` is {describe(kinds[name])}: a table cannot be partitioned by it"
            )
    if kinds and len(partition_by) == len(kinds):
        faults.append("every column is a partition column: there must be one besides")
    if faults:
        raise SchemaMismatch("; ".join(faults))


def _is_storable(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _PLAIN or kind.startswith("decimal(")
    match kind["type"]:
        case "struct":
            return bool(kind["fields"]) and all(_is_storable(f["type"]) for f in kind["fields"])
        case "array":
            return _is_storable(kind["elementType"])
        case "map":
            return _is_storable(kind["keyType"]) and _is_storable(kind["valueType"])
    return False


def _is_partition_type(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _PARTITION


class Fit(NamedTuple):
    """How data gets into a table."""

    written: dict[str, Any]
    """The schema of the files: the data's fields, in the table's types where these are wider."""
    merged: dict[str, Any]
    """The schema that the table must have: its own, and what is new."""


def fit(data: "StructType", table: dict[str, Any], *, merge: bool, widen: str = _WIDEN) -> Fit:
    """Raises `SchemaMismatch`, every fault named. `widen` says how a column gets a wider type.

    What the table has and the data has not is null in its files, also inside of structs.
    """
    fitting = _Fitting(merge, widen)
    written, merged = fitting.fields(delta_schema(data), table, "")
    faults = fitting.faults + [
        f"`{field['name']}` must not be null in the table and is missing here"
        for field in table["fields"]
        if not field["nullable"] and field["name"] not in data.fieldNames()
    ]
    if faults:
        raise SchemaMismatch("; ".join(faults))
    return Fit(written, merged)


class _Fitting:
    def __init__(self, merge: bool, widen: str) -> None:
        self._merge = merge
        self._widen = widen
        self.faults: list[str] = []

    def fields(
        self, data: dict[str, Any], table: dict[str, Any], above: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields of a struct: as they are written, and as the table then has them."""
        known = {field["name"]: field for field in table["fields"]}
        spelled = {name.lower(): name for name in known}
        written, merged = [], dict(known)
        for field in data["fields"]:
            name, path = field["name"], f"{above}{field['name']}"
            if name in known:
                kinds = self._kinds(field["type"], known[name]["type"], path)
                written.append({**field, "type": kinds[0]})
                merged[name] = {**known[name], "type": kinds[1]}
            elif name.lower() in spelled:
                has = f"{above}{spelled[name.lower()]}"
                self.faults.append(f"`{path}` is spelled `{has}` in the table")
            elif self._merge:
                written.append(field)
                merged[name] = field
            else:
                self.faults.append(f"`{path}` is not in the table (mergeSchema=true would add it)")
        whole = {"type": "struct", "fields": list(merged.values())}
        return {"type": "struct", "fields": written}, whole

    def _kinds(self, data: Any, table: Any, path: str) -> tuple[Any, Any]:
        if _nullable(data) == _nullable(table):
            return data, table
        kind = data["type"] if isinstance(data, dict) else data
        if isinstance(data, dict) and isinstance(table, dict) and kind == table["type"]:
            if kind == "struct":
                return self.fields(data, table, f"{path}.")
            inner = "elementType" if kind == "array" else "valueType"
            if kind == "array" or _nullable(data["keyType"]) == _nullable(table["keyType"]):
                written, merged = self._kinds(data[inner], table[inner], path)
                return {**data, inner: written}, {**table, inner: merged}
        fault = f"`{path}` is {describe(table)} in the table and {describe(data)} here"
        if isinstance(data, str) and isinstance(table, str):
            if table in WIDER.get(data, ()):
                return table, table
            if data in WIDER.get(table, ()):
                fault += f": {self._widen.format(path=path, kind=data)}"
        self.faults.append(fault)
        return data, table


def widened(table: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The table's schema with wider types, by path as `fit` names them. Raises `SchemaMismatch`."""
    missing = set(columns)
    schema: dict[str, Any] = _widened(table, "", columns, missing)
    if missing:
        raise SchemaMismatch(f"`{min(missing)}` is not in the table, or is not a number")
    return schema


def _widened(kind: Any, path: str, columns: Mapping[str, str], missing: set[str]) -> Any:
    if isinstance(kind, str):
        wanted = columns.get(path, kind)
        missing.discard(path)
        if wanted != kind and wanted not in WIDER.get(kind, ()):
            allowed = ", ".join(WIDER.get(kind, ()))
            way = f"it can become {allowed}" if allowed else "it cannot be widened"
            raise SchemaMismatch(f"`{path}` is {kind}: {way}")
        return wanted
    match kind["type"]:
        case "struct":
            above = f"{path}." if path else ""
            fields = [
                {**f, "type": _widened(f["type"], f"{above}{f['name']}", columns, missing)}
                for f in kind["fields"]
            ]
            return {**kind, "fields": fields}
        case "array":
            return {**kind, "elementType": _widened(kind["elementType"], path, columns, missing)}
        case "map":  # Its keys stay as they are, as in `fit`.
            return {**kind, "valueType": _widened(kind["valueType"], path, columns, missing)}
    return kind


def added_fields(new: Any, known: Any, above: str = "") -> Iterator[str]:
    """The paths of fields, at any depth, that a type has and an earlier form of it does not."""
    if isinstance(new, str) or isinstance(known, str) or new["type"] != known["type"]:
        return
    match new["type"]:
        case "struct":
            kinds = {field["name"]: field["type"] for field in known["fields"]}
            for field in new["fields"]:
                path = f"{above}{field['name']}"
                if field["name"] in kinds:
                    yield from added_fields(field["type"], kinds[field["name"]], f"{path}.")
                else:
                    yield path
        case "array":
            yield from added_fields(new["elementType"], known["elementType"], above)
        case "map":
            for inner in ("keyType", "valueType"):
                yield from added_fields(new[inner], known[inner], above)


def required_columns(table: dict[str, Any]) -> set[str]:
    """The columns of a table that may not be null."""
    return {field["name"] for field in table["fields"] if not field["nullable"]}


def describe(kind: Any) -> str:
    """A type as people write it: `array<string>`."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            inner = ", ".join(f"{f['name']}: {describe(f['type'])}" for f in kind["fields"])
            return f"struct<{inner}>"
        case "array":
            return f"array<{describe(kind['elementType'])}>"
        case "map":
            return f"map<{describe(kind['keyType'])}, {describe(kind['valueType'])}>"
    return str(kind.get("type"))


def arrow_schema(data: "StructType") -> "pa.Schema":
    """As the Parquet files have it: times in UTC."""
    import pyarrow as pa
    from deltalake import Schema

    return pa.schema(Schema.from_json(json.dumps(delta_schema(data))).to_arrow())
