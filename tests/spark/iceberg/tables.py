"""Iceberg tables for tests: batches as tasks write them, without Spark; read by DuckDB."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql.types import StructType

from suwi.env import SystemRandom
from suwi.spark.delta.files import FileWriter
from suwi.spark.iceberg.data_source import IcebergFormat
from suwi.spark.options import TableOptions, read_iceberg_options
from suwi.spark.origin import Origin
from suwi.spark.table_commit import Batch, Outcome, commit_batch

NAME = "shop.orders"


def options_of(warehouse: Path, **given: str) -> TableOptions:
    return read_iceberg_options({"table": NAME, "warehouse": str(warehouse), **given})


def write_batch(
    table: IcebergFormat,
    schema: StructType,
    rows: Sequence[Mapping[str, Any]],
    origin: Origin | None = None,
) -> Batch:
    """What a driver plans and tasks write."""
    plan, written, by, identity = table.plan(schema, overwrite=False)
    given = pa.Table.from_pylist(list(rows), plan.schema)
    files = FileWriter(table.storage(), plan).write_all(given.to_batches())
    return Batch(origin, written, by, files, identity=identity)


def commit(
    options: TableOptions,
    schema: StructType,
    rows: Sequence[Mapping[str, Any]],
    origin: Origin | None = None,
) -> Outcome:
    """A batch as a driver gets it into the table."""
    table = IcebergFormat(options)
    return commit_batch(table, write_batch(table, schema, rows, origin), SystemRandom())


def load(warehouse: Path, name: str = NAME) -> Table:
    """As any other program finds it."""
    uri = f"sqlite:///{warehouse}/catalog.db"
    with load_catalog(type="sql", uri=uri, warehouse=str(warehouse)) as catalog:
        return catalog.load_table(name)


def rows_of(warehouse: Path, name: str = NAME) -> list[dict[str, Any]]:
    """As DuckDB reads them."""
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            module = importlib.import_module(f"duckdb_extension_{extension}")
            (file,) = Path(module.__path__[0]).glob(f"extensions/*/{extension}.duckdb_extension")
            connection.execute(f"LOAD '{file}'")
        scan = f"SELECT * FROM iceberg_scan('{load(warehouse, name).metadata_location}')"
        found: list[dict[str, Any]] = connection.execute(scan).to_arrow_table().to_pylist()
    return found
