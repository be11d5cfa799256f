"""The one commit of a batch, made on the driver.

`commit_batch` is the entrance. A streaming batch carries its origin: which query (the checkpoint's
id) and which of its batches. It stands in the table's log as a transaction of that application, so
a batch that is replayed after a crash is recognised, by whichever driver, and written once.
Invariant: what the table says of an origin is read from the same handle that commits. delta-rs
refuses a repeated transaction only if it came after the handle was opened.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from suwi.env import Random
from suwi.spark.delta.errors import AnotherDriver, CommitContended, SchemaMismatch
from suwi.spark.delta.files import WrittenFile
from suwi.spark.delta.schema import delta_schema, fit, required_columns
from suwi.spark.delta.table import (
    check_partitions,
    check_supported,
    merge_schema,
    open_or_create,
    table_schema,
)
from suwi.spark.origin import Origin, log_suppressed

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql.types import StructType

    from suwi.spark.options import TableOptions

_ATTEMPTS: Final = 30
_PAUSE_S_MAX: Final = 1.0
_HISTORY: Final = 50
_APP: Final = "suwi.appId"
_VERSION: Final = "suwi.version"
_RUN: Final = "suwi.runId"


@dataclass(frozen=True, slots=True)
class Batch:
    """What tasks have written for one commit."""

    origin: Origin | None
    """None: an ordinary batch write, which is not repeated by anybody."""
    schema: "StructType"
    """Of the files."""
    partition_by: tuple[str, ...]
    files: Sequence[WrittenFile]
    replaces_all: bool = False

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Outcome(NamedTuple):
    is_suppressed: bool
    """The batch was in the table before."""
    may_hold_files: bool
    """An attempt of ours went out: some of the files may be in the table."""


# Puts a batch into the open table, in one commit with these properties.
Apply = Callable[["DeltaTable", Batch, "CommitProperties"], None]


def commit_batch(options: "TableOptions", batch: Batch, random: Random, apply: Apply) -> Outcome:
    """Put a batch into the table once. Raises `DeltaSinkError` and delta-rs's errors."""
    from deltalake.exceptions import CommitFailedError

    refusal: Exception | None = None
    for attempt in range(_ATTEMPTS):
        table = open_or_create(options, batch.schema)
        if batch.origin is not None and is_committed(table, batch.origin):
            _refuse_second_driver(table, batch.origin)
            log_suppressed(options.uri, batch.origin)
            return Outcome(is_suppressed=True, may_hold_files=refusal is not None)
        try:
            if not _prepare(table, options, batch):
                continue  # The schema has changed: the handle is stale.
            apply(table, batch, _properties(batch.origin))
            return Outcome(is_suppressed=False, may_hold_files=True)
        except CommitFailedError as error:
            refusal = error
            pause_s = random.uniform(0, min(_PAUSE_S_MAX, 0.02 * 2**attempt))
            time.sleep(pause_s)  # noqa: TID251 - a worker process of Spark, there is no loop
    raise CommitContended(f"{_ATTEMPTS} attempts failed, the last: {refusal}") from refusal


def append_files(table: "DeltaTable", batch: Batch, properties: "CommitProperties") -> None:
    """The files as they are, beside or instead of what the table has."""
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


def is_committed(table: "DeltaTable", origin: Origin) -> bool:
    """Whether the table has this batch of this query, or a later one."""
    version = table.transaction_version(origin.app_id)
    return version is not None and version >= origin.version


def _prepare(table: "DeltaTable", options: "TableOptions", batch: Batch) -> bool:
    """Judge the batch by the table as it is now; False if the table was changed to fit."""
    check_supported(table)
    check_partitions(table, batch.partition_by)
    has = table_schema(table)
    fitted = fit(batch.schema, has, merge=options.merge_schema)
    if fitted.written != delta_schema(batch.schema):
        raise CommitContended("the table's types were widened while the batch was written")
    if fitted.merged != has:
        merge_schema(table, fitted.merged)
        return False
    required = required_columns(has)
    for file in batch.files:
        null = sorted(required & file.columns_with_nulls)
        if null:
            raise SchemaMismatch(f"`{null[0]}` must not be null in the table, and is in the data")
    return True


def _properties(origin: Origin | None) -> "CommitProperties":
    from deltalake import CommitProperties, Transaction

    if origin is None:
        return CommitProperties()
    return CommitProperties(
        app_transactions=[Transaction(origin.app_id, origin.version)],
        # Texts: older releases of delta-rs take nothing else.
        custom_metadata={
            _APP: origin.app_id,
            _VERSION: str(origin.version),
            _RUN: origin.run_id or "",
        },
    )


def _refuse_second_driver(table: "DeltaTable", origin: Origin) -> None:
    """Raises `AnotherDriver` if the batch cannot be a replay.

    A driver replays only the batch that it begins with. If this run has committed before, and now
    finds its next batch done by another run, then two drivers share a checkpoint, and nobody can
    say that both mean the same records by one batch number.
    """
    runs = {
        int(commit[_VERSION]): commit[_RUN] or None
        for commit in table.history(_HISTORY)
        if commit.get(_APP) == origin.app_id
    }
    winner = runs.get(origin.version, origin.run_id)
    is_replay = all(
        run != origin.run_id for version, run in runs.items() if version < origin.version
    )
    if winner != origin.run_id and not is_replay:
        raise AnotherDriver(
            f"batch {origin.version} of query {origin.app_id} was written by run {winner} while "
            f"run {origin.run_id} was at it: two drivers use one checkpoint, and this one stops"
        )
