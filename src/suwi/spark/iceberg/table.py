"""An Iceberg table in its catalog: found, created, extended, and committed to.

`OpenIceberg` is the table for `table_commit.py`. pyiceberg's transactions only put the changes of a
commit together here: when they commit, they try again without the requirement that nobody else has
committed, and two drivers that race would both write one batch.
Invariant: the snapshot of a batch and the property that names the batch are one commit, which
requires that the branch is where it was when the property was read.
"""

import os.path
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.commit import check_nulls
from suwi.spark.delta.errors import CommitContended, TableMissing, UnsupportedTable
from suwi.spark.iceberg.files import data_file
from suwi.spark.iceberg.schema import iceberg_schema, partition_spec, spark_schema
from suwi.spark.table_commit import Batch, CommitRefused, OpenTable, notes_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

    from suwi.spark.options import TableOptions

_TXN: Final = "suwi.txn."
_CREATIONS_MAX: Final = 5
_PROPERTIES: Final = {
    # A stream commits every few seconds: neither manifests nor files of metadata may pile up.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


def open_catalog(options: "TableOptions", *, create: bool = True) -> "Catalog":
    """To be closed, or used in `with`. Raises `TableMissing` for a catalog that is not there."""
    from pyiceberg.catalog import load_catalog

    given = dict(options.catalog)
    _, is_file, path = given.get("uri", "").partition("sqlite:///")
    if is_file and not os.path.isfile(path):
        if not create:
            raise TableMissing(f"there is no catalog {path}")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    return load_catalog(given.pop("name", "default"), **given)


def find_table(options: "TableOptions") -> "Table | None":
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        with open_catalog(options, create=False) as catalog:
            table = catalog.load_table(options.table)
    except (TableMissing, NoSuchNamespaceError, NoSuchTableError):
        return None
    if table.format_version > 2:
        raise UnsupportedTable(f"{options.uri} is of format version 3, which is not written yet")
    return table


def create_table(options: "TableOptions", schema: Mapping[str, Any]) -> "Table":
    """An empty one, or the one that another driver has just created."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    columns = iceberg_schema(dict(schema))
    spec = partition_spec(columns, options.partition_by)
    for attempt in range(_CREATIONS_MAX):
        try:
            with open_catalog(options) as catalog:
                try:
                    catalog.create_table_if_not_exists(
                        options.table, columns, partition_spec=spec, properties=_PROPERTIES
                    )
                    break
                except NoSuchNamespaceError:
                    catalog.create_namespace_if_not_exists(catalog.namespace_from(options.table))
        except Exception:
            # Two may create the catalog's own tables, or the namespace, at once: what the second
            # one gets depends on the catalog.
            if attempt == _CREATIONS_MAX - 1:
                raise
    table = find_table(options)
    assert table is not None
    return table


def extend_table(table: "Table", schema: Mapping[str, Any]) -> None:
    """Add columns, and fields inside of structs, in a commit of their own. Raises
    `CommitRefused`."""
    from pyiceberg.exceptions import CommitFailedException

    try:
        with table.catalog, table.update_schema() as update:
            update.union_by_name(iceberg_schema(dict(schema)))
    except CommitFailedException as error:
        raise CommitRefused(str(error)) from error


def identity_of(table: "Table") -> str:
    """Files are for one table, and one partitioning of it."""
    return f"{table.metadata.table_uuid} {table.spec().spec_id}"


def property_of(app_id: str) -> str:
    """Has the number of the last batch; `app_id` is the query's id, or `id:output`."""
    return _TXN + app_id.replace(":", ".")


class OpenIceberg(OpenTable):
    def __init__(self, table: "Table") -> None:
        self.table = table

    def version(self, app_id: str) -> int | None:
        said = self.table.properties.get(property_of(app_id))
        return None if said is None else int(said)

    def history(self, newest: int) -> Iterable[Any]:
        return (one.summary for one in self.table.metadata.snapshots[-newest:] if one.summary)

    def check(self, batch: Batch) -> None:
        if batch.identity != identity_of(self.table):
            raise CommitContended(
                "the table was created or partitioned anew while the batch was written"
            )
        check_nulls(batch, spark_schema(self.table.schema()))

    def commit(self, batch: Batch) -> bool:
        from pyiceberg.exceptions import (
            CommitFailedException,
            CommitStateUnknownException,
            ServerError,
            ServiceUnavailableError,
        )
        from pyiceberg.table.refs import MAIN_BRANCH
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID
        from sqlalchemy.exc import SQLAlchemyError

        self.check(batch)
        table = self.table
        head = table.metadata.refs.get(MAIN_BRANCH)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(
                ref=MAIN_BRANCH, snapshot_id=None if head is None else head.snapshot_id
            ),
        )
        updates = self._staged(batch)._updates
        unknown = (CommitStateUnknownException, ServerError, ServiceUnavailableError, OSError)
        try:
            with table.catalog as catalog:
                done = catalog.commit_table(table, requirements, updates)
        except (CommitFailedException, SQLAlchemyError, *unknown) as error:
            raise CommitRefused(f"{type(error).__name__}: {error}") from error
        # As `write.metadata.delete-after-commit.enabled` says; what fails is logged.
        table.catalog._delete_old_metadata(table.io, table.metadata, done.metadata)
        return True

    def _staged(self, batch: Batch) -> "Transaction":
        """The updates of the commit; the manifests that they name are written."""
        staged = self.table.transaction()
        if batch.origin is not None:
            origin = batch.origin
            staged.set_properties({property_of(origin.app_id): str(origin.version)})
        snapshot = staged.update_snapshot(snapshot_properties=notes_of(batch))
        is_merging = self.table.properties.get("commit.manifest-merge.enabled") == "true"
        with snapshot.merge_append() if is_merging else snapshot.fast_append() as append:
            for file in batch.files:
                append.append_data_file(data_file(self.table, file))
        return staged
