"""The one commit of a batch into a table of any format, made on the driver.

`commit_batch` is the entrance; what differs between formats is a `TableFormat`. A streaming batch
carries its origin: which query (the checkpoint's id) and which of its batches. The table keeps it
with the commit, so a batch that is replayed after a crash is recognised, by whichever driver, and
written once.
Invariant: what a table says of an origin is read from the same `OpenTable` that commits.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from suwi.env import Random, SystemRandom
from suwi.spark.delta.errors import AnotherDriver, CommitContended, FilesGone
from suwi.spark.delta.files import FilePlan, WrittenFile
from suwi.spark.delta.storage import Storage
from suwi.spark.options import TableOptions
from suwi.spark.origin import Origin, log_suppressed

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ATTEMPTS: Final = 30
_PAUSE_S_MAX: Final = 1.0
_HISTORY: Final = 50
_APP: Final = "suwi.appId"
_VERSION: Final = "suwi.version"
_RUN: Final = "suwi.runId"
_RULES: Final = "suwi.rules"

# -- formats ---------------------------------------------------------------------------------------


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
    broken: Mapping[str, int] = field(default_factory=dict)
    """How many rows broke each rule."""
    identity: str = ""
    """Of the table that the files were written for, where the format needs it."""


class CommitRefused(Exception):
    """A commit that was not made, or whose outcome is not known: the table must be asked again."""


class OpenTable(ABC):
    """A table as it is at one moment. On the driver."""

    @abstractmethod
    def version(self, app_id: str) -> int | None:
        """The last batch that the table has of an application."""

    @abstractmethod
    def history(self, newest: int) -> Iterable[Any]:
        """The notes of so many commits, as mappings."""

    @abstractmethod
    def check(self, batch: Batch) -> None:
        """Raises `DeltaSinkError` for what would keep the batch from being committed."""

    @abstractmethod
    def commit(self, batch: Batch) -> bool:
        """Add the batch; False if the table was changed for it and must be opened again. Raises
        `CommitRefused`, `DeltaSinkError`."""

    def has(self, origin: Origin) -> bool:
        """Whether the table has this batch of this query, or a later one."""
        version = self.version(origin.app_id)
        return version is not None and version >= origin.version


class Planned(NamedTuple):
    """What the driver has decided before tasks start."""

    files: FilePlan
    written: "StructType"
    """The schema of the files: types are the table's where these are wider."""
    partition_by: tuple[str, ...]
    identity: str = ""


class TableFormat(ABC):
    """A table by its options. It is sent to tasks, which use `storage` only."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options

    @abstractmethod
    def judge(self, schema: "StructType", overwrite: bool) -> None:
        """Refuse what the commit would refuse; nothing is changed. Raises `DeltaSinkError`."""

    @abstractmethod
    def plan(self, schema: "StructType", overwrite: bool) -> Planned:
        """Before tasks start; it refuses what `judge` does."""

    @abstractmethod
    def open(self, schema: "StructType") -> OpenTable:
        """The table as it is now; one that is missing is created, empty."""

    @abstractmethod
    def find(self) -> OpenTable | None:
        """The table as it is now, if it exists."""

    @abstractmethod
    def storage(self) -> Storage:
        """The table's directory. After `plan`, `open` or `find`."""


# -- commits ---------------------------------------------------------------------------------------


def notes_of(batch: Batch) -> dict[str, str]:
    """What the table's history says of the commit. Texts: older releases of delta-rs take nothing
    else."""
    notes = {_RULES: json.dumps(batch.broken)} if batch.broken else {}
    if batch.origin is not None:
        app, version, run = batch.origin
        notes |= {_APP: app, _VERSION: str(version), _RUN: run or ""}
    return notes


class Outcome(NamedTuple):
    is_suppressed: bool
    """The batch was in the table before."""
    may_hold_files: bool
    """A commit was attempted: some of the files may be in the table."""


def commit_batch(table: TableFormat, batch: Batch, random: Random) -> Outcome:
    """Put a batch into the table once. Raises `DeltaSinkError` and the library's errors."""
    refusal: Exception | None = None
    for attempt in range(_ATTEMPTS):
        opened = table.open(batch.schema)
        if batch.origin is not None and opened.has(batch.origin):
            _refuse_second_driver(opened.history(_HISTORY), batch.origin)
            log_suppressed(table.options.uri, batch.origin)
            return Outcome(is_suppressed=True, may_hold_files=refusal is not None)
        try:
            if opened.commit(batch):
                return Outcome(is_suppressed=False, may_hold_files=True)
        except CommitRefused as error:
            refusal = error
            pause_s = random.uniform(0, min(_PAUSE_S_MAX, 0.02 * 2**attempt))
            time.sleep(pause_s)  # noqa: TID251 - a worker process of Spark, there is no loop
    raise CommitContended(f"{_ATTEMPTS} attempts failed, the last: {refusal}") from refusal


def _refuse_second_driver(history: Iterable[Any], origin: Origin) -> None:
    """Raises `AnotherDriver` if the batch cannot be a replay.

    A driver replays only the batch that it begins with. If this run has committed before, and now
    finds its next batch done by another run, then two drivers share a checkpoint, and nobody can
    say that both mean the same records by one batch number.
    """
    own = (notes for notes in history if notes.get(_APP) == origin.app_id)
    runs = {int(notes[_VERSION]): notes[_RUN] or None for notes in own}
    winner = runs.get(origin.version, origin.run_id)
    is_replay = all(
        run != origin.run_id for version, run in runs.items() if version < origin.version
    )
    if winner != origin.run_id and not is_replay:
        raise AnotherDriver(
            f"batch {origin.version} of query {origin.app_id} was written by run {winner} while "
            f"run {origin.run_id} was at it: two drivers use one checkpoint, and this one stops"
        )


def commit_files(table: TableFormat, batch: Batch) -> Outcome:
    """Put a batch into the table once; staged files are removed then."""
    outcome = commit_batch(table, batch, SystemRandom())
    if table.options.is_staged:
        remove_files(table, batch.files)
    return outcome


def check_files(table: TableFormat, batch: Batch, manifest: str) -> None:
    """Before a manifest is committed by another run. Raises `FilesGone`."""
    assert batch.origin is not None
    opened = table.find()
    if opened is not None and opened.has(batch.origin):
        return
    storage = table.storage()
    gone = [file.path for file in batch.files if not storage.look(file.path).is_file]
    if gone:
        raise FilesGone(
            f"{gone[0]} of {table.options.uri} is gone: it was removed before batch "
            f"{batch.origin.version} was committed. Without the file {manifest} the batch is "
            "written again, whole, and what other outputs have of it may be there twice"
        )


def remove_files(table: TableFormat, files: Iterable[WrittenFile]) -> None:
    table.storage().remove(file.path for file in files)
