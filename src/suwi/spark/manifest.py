"""The manifests of a checkpoint: what a batch with several outputs wrote, before it is committed.

`ManifestLog` keeps them in `suwi-outputs` of the checkpoint, one file for each batch, and beside
them what holds for all batches: the `Record`.
Invariants: a manifest is stored whole and durable, once, and decides its batch. One process at a
time uses the directory: it is locked before anything is read, until the process ends.
"""

import json
import os.path
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from suwi.env import AlreadyLocked, Disk, Lock, local_env

DIRECTORY: Final = "suwi-outputs"
_KEPT: Final = 10
"""Of the newest batches; a replay needs the last one only."""

_locks: dict[str, Lock] = {}
"""Of this process, which may start its query again."""


class AnotherProcess(Exception):
    """Another driver writes with the checkpoint."""


class OutputsChanged(Exception):
    """The outputs, inputs or steps do not go with what the checkpoint has."""


@dataclass(frozen=True, slots=True)
class Manifest:
    batch: int
    query: str
    run: str | None
    version: int
    """Of the transactional ids."""
    outputs: Mapping[str, Mapping[str, Any]]
    """By name: `to`, its address, and what its commit needs."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """The version of each dimension that the batch was joined with."""

    def still_needs(self, output: str) -> str:
        """Why an output cannot be left out."""
        return (
            f"batch {self.batch} is not committed yet, and writes output {output} to "
            f"{self.outputs[output]['to']}: run once more with that output, then change it"
        )


@dataclass(frozen=True, slots=True)
class Record:
    """What a checkpoint began with."""

    first: str
    """The output that commits under the bare query id."""
    version: int = 0
    """The greatest of transactional ids that a run has begun with."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Inputs and stateful steps."""


class ManifestLog:
    def __init__(self, checkpoint: str, disk: Disk | None = None) -> None:
        """`checkpoint` is a directory of this machine."""
        self._disk = disk or local_env().disk
        self._folder = os.path.join(os.path.abspath(checkpoint), DIRECTORY)

    def lock(self) -> None:
        """Until the process ends. Raises `AnotherProcess`."""
        path = os.path.join(self._folder, "lock")
        if self._folder in _locks and self._disk.exists(path):
            return  # Else the checkpoint was set aside, with the lock in it.
        self._disk.make_dirs(self._folder)
        try:
            _locks[self._folder] = self._disk.lock(path)
        except AlreadyLocked:
            raise AnotherProcess(
                f"another process writes with the checkpoint {os.path.dirname(self._folder)}: two "
                "drivers use it, and this one stops"
            ) from None

    def record(self) -> Record | None:
        found = self._read("record.json")
        return None if found is None else Record(**found)

    def store_record(self, record: Record) -> None:
        self._write("record.json", asdict(record))

    def find(self, batch: int) -> Manifest | None:
        found = self._read(f"{batch}.json")
        return None if found is None else Manifest(**found)

    def last(self) -> Manifest | None:
        batches = self._batches()
        return self.find(batches[-1]) if batches else None

    def store(self, manifest: Manifest) -> None:
        """When this returns, the batch is decided."""
        self._write(f"{manifest.batch}.json", asdict(manifest))
        for batch in self._batches():
            if batch <= manifest.batch - _KEPT:
                self._disk.remove(self.path(batch))

    def path(self, batch: int) -> str:
        return os.path.join(self._folder, f"{batch}.json")

    def _batches(self) -> list[int]:
        if not self._disk.is_dir(self._folder):
            return []
        names = (name.removesuffix(".json") for name in self._disk.list_dir(self._folder))
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self._folder, name)
        if not self._disk.exists(path):
            return None
        found: dict[str, Any] = json.loads(self._disk.read_bytes(path))
        return found

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._disk.make_dirs(self._folder)
        data = json.dumps(content, ensure_ascii=False).encode()
        self._disk.write_atomically(os.path.join(self._folder, name), data)
