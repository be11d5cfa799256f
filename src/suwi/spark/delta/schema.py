"""The columns of the data against the columns of the table: the same, merged, or refused.

delta-rs writes whatever it is given, so it is here that a table is kept from files that do not
fit it. `check_types` judges the data alone, `new_columns` against a table, and `arrow_schema` is
what the files have.
Invariant: a column that is in both has one type in both.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PLAIN: Final = frozenset(
    """
    string long integer short byte float double boolean binary date timestamp timestamp_ntz
    """.split()
)
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
    """A type without what does not matter for comparing: nullability and metadata."""
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


def check_types(data: "StructType", partition_by: Sequence[str]) -> None:
    """Raises `SchemaMismatch` for what a Delta table cannot have, every column named."""
    faults = [
        f"`{field['name']}` is {describe(field['type'])}, which a Delta table cannot have"
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


def new_columns(data: "StructType", table: dict[str, Any], *, merge: bool) -> list[dict[str, Any]]:
    """The columns that the table has to get first. Raises `SchemaMismatch`, every fault named.

    Columns of the table that the data does not have are null in its files.
    """
    known = {field["name"]: field for field in table["fields"]}
    spelled = {name.lower(): name for name in known}
    faults: list[str] = []
    added: list[dict[str, Any]] = []
    for field in delta_schema(data)["fields"]:
        name, kind = field["name"], field["type"]
        if name in known:
            has = _nullable(known[name]["type"])
            if has != kind:
                faults.append(f"`{name}` is {describe(has)} in the table and {describe(kind)} here")
        elif name.lower() in spelled:
            faults.append(f"`{name}` is spelled `{spelled[name.lower()]}` in the table")
        elif merge:
            added.append(field)
        else:
            faults.append(f"`{name}` is not in the table (mergeSchema=true would add it)")
    missing = [
        f"`{name}` must not be null in the table and is missing here"
        for name, field in known.items()
        if not field["nullable"] and name not in data.fieldNames()
    ]
    if faults or missing:
        raise SchemaMismatch("; ".join(faults + missing))
    return added


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


def arrow_schema(data: "StructType", without: Sequence[str] = ()) -> "pa.Schema":
    """What the Parquet files have: times in UTC, and not the partition columns."""
    import pyarrow as pa
    from deltalake import Schema

    whole = pa.schema(Schema.from_json(json.dumps(delta_schema(data))).to_arrow())
    return pa.schema([field for field in whole if field.name not in without])
