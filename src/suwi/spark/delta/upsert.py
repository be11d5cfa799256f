"""Rows that replace rows, by key or by a condition, in the same single commit.

Tasks write the batch beside the table, in `_suwi_staging`. `merge_files`: the driver keeps the last
row of each key and lets delta-rs merge them. It does so in memory: a batch should be of the size of
a micro-batch, and the table's files that hold none of its keys are passed over by their statistics.
`replace_files`: rows of the table that meet `replaceWhere` are removed, and the batch is added.
Invariant: after the commit the table has, for each key of the batch, one row: the one with the
greatest `orderBy`, whether it came now or was there before.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.spark.delta.commit import Apply
from suwi.spark.delta.errors import SchemaMismatch
from suwi.spark.delta.files import WrittenFile
from suwi.spark.delta.log import DataFile
from suwi.spark.delta.scan import batches_of
from suwi.spark.delta.storage import storage_of
from suwi.spark.options import TableOptions
from suwi.spark.table_commit import Batch

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, WriterProperties
    from pyspark.sql.types import StructType

STAGING: Final = "_suwi_staging"
_ROW: Final = "__suwi_row"
# As delta-rs names them. Parquet's "lz4" is LZ4_RAW; the older LZ4 is read by few.
_CODECS: Final = {
    "snappy": "SNAPPY",
    "zstd": "ZSTD",
    "gzip": "GZIP",
    "lz4": "LZ4_RAW",
    "none": "UNCOMPRESSED",
}


def check_keys(options: TableOptions, data: "StructType") -> None:
    """Raises `SchemaMismatch`."""
    wanted = [*options.keys, *([options.order_by] if options.order_by else [])]
    missing = [name for name in wanted if name not in data.fieldNames()]
    if missing:
        raise SchemaMismatch(f"`{missing[0]}` is a key or an order and is not in the data")


def merge_files(options: TableOptions) -> Apply:
    """Merges a batch of staged files into the table."""

    writing = _writing(options)

    def apply(table: "DeltaTable", batch: Batch, properties: "CommitProperties") -> None:
        import pyarrow as pa

        columns_of_data = batch.schema.fieldNames()
        schema = pa.schema([one for one in _columns(table) if one.name in columns_of_data])
        staged = pa.Table.from_batches(_staged(options, batch.files, schema), schema)
        rows = last_of_each_key(staged, options.keys, options.order_by)
        same = " AND ".join(_same(key, rows) for key in options.keys)
        merger = table.merge(
            rows,
            same,
            source_alias="source",
            target_alias="target",
            writer_properties=writing,
            commit_properties=properties,
        )
        newer = None
        if options.order_by:
            order = _quote(options.order_by)
            newer = f"(target.{order} IS NULL OR source.{order} >= target.{order})"
        columns = {_quote(name): f"source.{_quote(name)}" for name in rows.schema.names}
        if options.delete_when:
            gone = f"({options.delete_when})"
            both = f"{gone} AND {newer}" if newer else gone
            merger = merger.when_matched_delete(both)
            merger = merger.when_matched_update(columns, newer)
            merger = merger.when_not_matched_insert(columns, f"NOT COALESCE({gone}, FALSE)")
        else:
            merger = merger.when_matched_update(columns, newer)
            merger = merger.when_not_matched_insert(columns)
        merger.execute()

    return apply


def replace_files(options: TableOptions) -> Apply:
    """Puts a batch of staged files in the place of the rows that meet the condition."""

    def apply(table: "DeltaTable", batch: Batch, properties: "CommitProperties") -> None:
        import pyarrow as pa
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        schema = _columns(table)
        rows = pa.RecordBatchReader.from_batches(schema, _staged(options, batch.files, schema))
        try:
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=options.replace_where,
                target_file_size=options.target_bytes,
                writer_properties=_writing(options),
                commit_properties=properties,
            )
        except CommitFailedError:
            raise
        except DeltaError as error:
            if "failed validation check" not in str(error):
                raise
            raise SchemaMismatch(
                "there are rows that do not meet the condition by which they are to replace others"
                f": {options.replace_where}"
            ) from None

    return apply


def _writing(options: TableOptions) -> "WriterProperties":
    from deltalake import WriterProperties

    codec: Any = _CODECS[options.codec]
    return WriterProperties(compression=codec)


def _columns(table: "DeltaTable") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _staged(
    options: TableOptions, files: Sequence[WrittenFile], schema: "pa.Schema"
) -> "Iterator[pa.RecordBatch]":
    """The batch with these columns of the table, a part at a time.

    delta-rs merges columns of one type only: structs get all fields that the table's have.
    """
    storage = storage_of(options.uri, options.storage)
    for file in files:
        with storage.read(file.path) as source:
            yield from batches_of(source, DataFile(file.path, file.size_bytes, {}, {}), schema)


def last_of_each_key(rows: "pa.Table", keys: Sequence[str], order_by: str | None) -> "pa.Table":
    """One row for each key: the greatest by `order_by`, else whichever came last.

    Which came last means little where several tasks wrote, so an order is worth having.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if order_by is not None:
        # Nulls first, which is said in another way by every release of pyarrow. Stable: of
        # equals the last stays.
        ranked = pa.table({"known": pc.is_valid(rows[order_by]), "order": rows[order_by]})
        by_order = pc.sort_indices(
            ranked, sort_keys=[("known", "ascending"), ("order", "ascending")]
        )
        rows = rows.take(by_order)
    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(range(rows.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])
    return rows.take(last.column(f"{_ROW}_max"))


def _same(key: str, rows: "pa.Table") -> str:
    """Null keys are equal; only `=` allows skipping files by their statistics."""
    name = _quote(key)
    equal = "=" if rows[key].null_count == 0 else "IS NOT DISTINCT FROM"
    return f"(target.{name} {equal} source.{name})"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
