"""The table for a commit: opened anew, created if it is missing, and checked.

`open_table` for looking, `open_or_create` for writing.
Invariant: a table is made empty. Made together with data, two that race would both win.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.errors import SchemaMismatch, TableMissing, UnsupportedTable
from suwi.spark.delta.files import NAME
from suwi.spark.delta.schema import delta_schema
from suwi.spark.delta.storage import storage_of

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    from suwi.spark.delta.storage import Storage
    from suwi.spark.options import TableOptions

_STATISTICS_MAX: Final = 32
DELTALAKE_MIN: Final = (1, 6)
# Features that restrict writers of data files without being visible in schema or settings.
_BINDING: Final = frozenset({"rowTracking", "icebergCompatV1", "icebergCompatV2", "clustering"})


def check_release(release: str | None = None) -> None:
    """Refuse a delta-rs that forgets which batch it commits. Raises `UnsupportedTable`.

    Before 1.6 `create_write_transaction` leaves the transaction out without a word: every replay
    would be written again.
    """
    import deltalake

    release = release or deltalake.__version__
    if tuple(int(part) for part in release.split(".")[:2]) < DELTALAKE_MIN:
        raise UnsupportedTable(f"deltalake {release} is too old: pip install 'deltalake>=1.6'")


def open_table(options: "TableOptions", version: int | None = None) -> "DeltaTable":
    """The newest version, or another. Raises `TableMissing`."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        storage = dict(options.storage) or None
        return DeltaTable(options.uri, version=version, storage_options=storage)
    except TableNotFoundError:
        raise TableMissing(f"there is no Delta table at {options.uri}") from None


def check_place(options: "TableOptions") -> None:
    """Refuse to make a table where something else is. Raises `UnsupportedTable`.

    Files of a first batch whose driver was killed are ours; what begins with `_` or `.` (a
    checkpoint, a marker) is no data to readers of tables.
    """
    for info in _strangers(storage_of(options.uri, options.storage)):
        raise UnsupportedTable(
            f"{options.uri} is not empty and is no Delta table: there is {info!r}. Name another "
            "place, or convert it first: deltalake.convert_to_deltalake(path)"
        )


def _strangers(storage: "Storage") -> Iterator[str]:
    from pyarrow.fs import FileType

    for info in storage.top():
        name = info.base_name
        if name.startswith(("_", ".")) or NAME.fullmatch(name):
            continue
        if info.type == FileType.Directory and "=" in name:
            inside = [one.base_name for one in storage.list(name) if one.is_file]
            if all(NAME.fullmatch(one) for one in inside):
                continue
        yield name


def open_or_create(options: "TableOptions", data: "StructType") -> "DeltaTable":
    from deltalake import DeltaTable, Schema

    try:
        return open_table(options)
    except TableMissing:
        check_place(options)
    return DeltaTable.create(
        options.uri,
        Schema.from_json(json.dumps(delta_schema(data))),
        mode="ignore",
        partition_by=list(options.partition_by),
        storage_options=dict(options.storage) or None,
    )


def table_schema(table: "DeltaTable") -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(table.schema().to_json())
    return schema


def merge_schema(table: "DeltaTable", schema: Mapping[str, Any]) -> None:
    """Add columns, and fields inside of structs, in a commit of their own.

    delta-rs adds outermost columns only by its `alter`; a write without rows adds the others, too.
    """
    import pyarrow as pa
    from deltalake import Schema, write_deltalake

    arrow = pa.schema(Schema.from_json(json.dumps(schema)).to_arrow())
    write_deltalake(table, arrow.empty_table(), mode="append", schema_mode="merge")


def statistics_columns(table: "DeltaTable | None") -> int:
    """Of how many columns, from the first, files state their bounds; negative is all."""
    if table is None:
        return _STATISTICS_MAX
    said = table.metadata().configuration.get("delta.dataSkippingNumIndexedCols")
    return _STATISTICS_MAX if said is None else int(said)


def check_partitions(table: "DeltaTable", partition_by: tuple[str, ...]) -> None:
    """Raises `SchemaMismatch`."""
    has = tuple(table.metadata().partition_columns)
    if has != partition_by:
        raise SchemaMismatch(
            f"the table is partitioned by {_columns(has)}, the data by {_columns(partition_by)}"
        )


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def check_supported(table: "DeltaTable") -> None:
    """Refuse a table with writer features that are not supported. Raises `UnsupportedTable`.

    delta-rs checks what it commits, but not what is in files that others wrote.
    """
    settings: Mapping[str, str] = table.metadata().configuration
    faults = [
        f"constraint {name.removeprefix('delta.constraints.')}"
        for name in settings
        if name.startswith("delta.constraints.")
    ]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        faults.append("column mapping")
    faults += sorted(_BINDING.intersection(table.protocol().writer_features or ()))
    for field in table_schema(table)["fields"]:
        for rule in field["metadata"]:
            if rule in ("delta.invariants", "delta.generationExpression") or rule.startswith(
                "delta.identity"
            ):
                faults.append(f"{rule} of `{field['name']}`")
    if faults:
        raise UnsupportedTable(f"this table cannot be written to from here: {', '.join(faults)}")
