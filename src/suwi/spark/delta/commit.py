"""A Delta table that a batch is committed to: `OpenDelta`, for `table_commit.py`.

A batch's origin stands in the table's log as a transaction of that application.
Invariant: what the table says of an origin is read from the same handle that commits. delta-rs
refuses a repeated transaction only if it came after the handle was opened.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from suwi.spark.delta.errors import CommitContended, SchemaMismatch
from suwi.spark.delta.files import WrittenFile
from suwi.spark.delta.schema import delta_schema, fit, required_columns
from suwi.spark.delta.table import check_partitions, check_supported, merge_schema, table_schema
from suwi.spark.table_commit import Batch, CommitRefused, OpenTable, notes_of

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

    from suwi.spark.options import TableOptions

# Puts a batch into the open table, in one commit with these properties.
Apply = Callable[["DeltaTable", Batch, "CommitProperties"], None]


class OpenDelta(OpenTable):
    def __init__(self, table: "DeltaTable", options: "TableOptions", apply: Apply) -> None:
        self._table = table
        self._options = options
        self._apply = apply

    def version(self, app_id: str) -> int | None:
        return self._table.transaction_version(app_id)

    def history(self, newest: int) -> Iterable[Any]:
        return self._table.history(newest)

    def check(self, batch: Batch) -> None:
        self._merged(batch)

    def commit(self, batch: Batch) -> bool:
        from deltalake.exceptions import CommitFailedError

        try:
            merged = self._merged(batch)
            if merged != table_schema(self._table):
                merge_schema(self._table, merged)
                return False  # The handle is stale.
            self._apply(self._table, batch, _properties(batch))
        except CommitFailedError as error:
            raise CommitRefused(str(error)) from error
        return True

    def _merged(self, batch: Batch) -> Mapping[str, Any]:
        """The table's schema with the columns of the batch. Raises `DeltaSinkError`."""
        check_supported(self._table)
        check_partitions(self._table, batch.partition_by)
        has = table_schema(self._table)
        fitted = fit(batch.schema, has, merge=self._options.merge_schema)
        if fitted.written != delta_schema(batch.schema):
            raise CommitContended("the table's types were widened while the batch was written")
        check_nulls(batch, has)
        return fitted.merged


def check_nulls(batch: Batch, table: dict[str, Any]) -> None:
    """Raises `SchemaMismatch`."""
    required = required_columns(table)
    for file in batch.files:
        null = sorted(required & file.columns_with_nulls)
        if null:
            raise SchemaMismatch(f"`{null[0]}` must not be null in the table, and is in the data")


def append_files(table: "DeltaTable", batch: Batch, properties: "CommitProperties") -> None:
    """Add the files to the table, or replace its files with them."""
    table.create_write_transaction(
        add_actions(batch.files),
        "overwrite" if batch.replaces_all else "append",
        table.schema(),
        list(batch.partition_by),
        commit_properties=properties,
    )


def add_actions(files: Iterable[WrittenFile]) -> list[Any]:
    from deltalake.transaction import AddAction

    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - as Delta stamps its files
    return [
        AddAction(file.path, file.size_bytes, file.partition_values, now_ms, True, file.statistics)
        for file in files
    ]


def _properties(batch: Batch) -> "CommitProperties":
    from deltalake import CommitProperties, Transaction

    origin, notes = batch.origin, notes_of(batch)
    if origin is None:
        return CommitProperties(custom_metadata=notes or None)
    transaction = Transaction(origin.app_id, origin.version)
    return CommitProperties(app_transactions=[transaction], custom_metadata=notes)
