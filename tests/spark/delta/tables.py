"""Delta tables for tests: batches as tasks write them, without Spark."""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from suwi.env import SystemRandom
from suwi.spark.delta.commit import Apply, append_files
from suwi.spark.delta.data_source import DeltaDataSource, DeltaFormat
from suwi.spark.delta.files import FilePlan, FileWriter, WrittenFile
from suwi.spark.delta.schema import arrow_schema
from suwi.spark.delta.storage import storage_of
from suwi.spark.options import TableOptions, read_table_options
from suwi.spark.origin import Origin
from suwi.spark.stream_reader import OldStreamReader
from suwi.spark.table_commit import Batch, Outcome, commit_batch

_numbers = count()


def options_of(table: Path, **given: str) -> TableOptions:
    return read_table_options({"path": str(table), **given})


def write_files(
    options: TableOptions,
    schema: StructType,
    rows: Sequence[Mapping[str, Any]],
    *,
    columns_with_statistics: int = 32,
    subdirectory: str = "",
) -> list[WrittenFile]:
    plan = FilePlan(
        schema=arrow_schema(schema),
        partition_by=options.partition_by,
        target_bytes=options.target_bytes,
        codec=options.codec,
        columns_with_statistics=columns_with_statistics,
        subdirectory=subdirectory,
    )
    writer = FileWriter(
        storage_of(options.uri, options.storage), plan, lambda: f"part-{UUID(int=next(_numbers))}"
    )
    writer.write(pa.Table.from_pylist(list(rows), plan.schema).to_batches())
    return writer.close()


def commit(
    options: TableOptions,
    schema: StructType,
    rows: Sequence[Mapping[str, Any]],
    origin: Origin | None = None,
    apply: Apply = append_files,
) -> Outcome:
    """A batch as a driver gets it into the table."""
    files = write_files(options, schema, rows)
    batch = Batch(origin, schema, options.partition_by, files)
    return commit_batch(DeltaFormat(options, apply), batch, SystemRandom())


def rows_of(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return found


def schema_of(text: str) -> StructType:
    """`id long, name string`, without a session to parse it."""
    fields = []
    for column in text.split(", "):
        name, kind, *rest = column.split()
        fields.append({"name": name, "type": kind, "nullable": rest != ["!"], "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


# Row 1 as the protocol has it: a magic number, count of bitmaps, key, and a roaring bitmap.
_SECOND_ROW = struct.pack("<IQIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 1)


def delete_by_vector(table: Path) -> None:
    """Delete the second row of the table's only file, as Spark does: the file stays."""
    log = table / "_delta_log"
    actions = [
        json.loads(line)
        for entry in sorted(log.glob("*.json"))
        for line in entry.read_text().splitlines()
    ]
    (add,) = (action["add"] for action in actions if "add" in action)
    (table / "vectors.bin").write_bytes(
        b"\1"
        + struct.pack(">I", len(_SECOND_ROW))
        + _SECOND_ROW
        + struct.pack(">I", zlib.crc32(_SECOND_ROW))
    )
    vector = {
        "storageType": "p",
        "pathOrInlineDv": (table / "vectors.bin").as_uri(),
        "offset": 1,
        "sizeInBytes": len(_SECOND_ROW),
        "cardinality": 1,
    }
    append_entry(
        table,
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }
        },
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    )


def append_entry(table: Path, *actions: Mapping[str, Any]) -> None:
    """A commit by somebody else, as it stands in the log."""
    log = table / "_delta_log"
    version = len(list(log.glob("*.json")))
    (log / f"{version:020}.json").write_text("".join(f"{json.dumps(one)}\n" for one in actions))


# -- a table of numbers, read ---------------------------------------------------------------------

NUMBERS = schema_of("n long, day date")


def add(table: Path, *numbers: int, **options: str) -> None:
    given = [{"n": number, "day": date(2026, 1, number % 28 + 1)} for number in numbers]
    commit(options_of(table, **options), NUMBERS, given)


def source(table: Path, **options: str) -> DeltaDataSource:
    return DeltaDataSource(CaseInsensitiveDict({"path": str(table), **options}))


def rows(reader: Any, partitions: Any) -> Iterator[dict[str, Any]]:
    for partition in partitions:
        for one in reader.read(partition):
            yield from one.to_pylist()


class Query:
    """Spark's part: it keeps offsets as text, and asks for a batch."""

    def __init__(self, table: Path, ended_at: str = "", **options: str) -> None:
        found = source(table, **options)
        self.reader: Any = found.streamReader(found.schema())
        self.is_old = isinstance(self.reader, OldStreamReader)
        self.start = self.end = ended_at
        if ended_at and self.is_old:
            assert self.reader.partitions(json.loads(ended_at), json.loads(ended_at)) == []
        elif not ended_at and not self.is_old:
            self.start = json.dumps(self.reader.initialOffset())

    def plan(self) -> bool:
        if self.is_old:
            self.end = json.dumps(self.reader.latestOffset())
            self.start = self.start or json.dumps(self.reader.initialOffset())
        else:
            limit = self.reader.getDefaultReadLimit()
            self.end = json.dumps(self.reader.latestOffset(json.loads(self.start), limit))
        return self.end != self.start

    def run(self) -> list[Any]:
        start, end = json.loads(self.start), json.loads(self.end)
        found = sorted(row["n"] for row in rows(self.reader, self.reader.partitions(start, end)))
        self.start = self.end
        return found

    def batch(self) -> list[Any]:
        return self.run() if self.plan() else []
