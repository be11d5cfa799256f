"""A pipeline's checkpoint: whether it exists, its position, and `set_aside`.

Invariant: nothing is deleted. A checkpoint that is set aside is renamed, and can be renamed back.
"""

import json
import os.path
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from suwi.env import Env, local_env
from suwi.spark.offsets import Offsets, from_json

_FILE = "file:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotLocal(Exception):
    """The checkpoint is not on this machine: only Spark and the tools of its store reach it."""


@dataclass(frozen=True, slots=True)
class Position:
    batch: int
    offsets: Offsets
    """Where it ends; a table among the sources has none."""
    is_done: bool
    """False: the batch was begun and will be run again."""


class Checkpoint:
    def __init__(self, path: str, env: Env | None = None) -> None:
        self.path = path
        self._env = env or local_env()

    @property
    def folder(self) -> str:
        """Raises `NotLocal`."""
        if self.path.startswith(_FILE):
            return "/" + self.path.removeprefix(_FILE).lstrip("/")
        if "://" in self.path:
            raise NotLocal(f"{self.path} is not on this machine")
        return os.path.abspath(self.path)

    def exists(self) -> bool:
        """Raises `NotLocal`."""
        return any(
            self._env.disk.exists(os.path.join(self.folder, name))
            for name in ("metadata", "offsets")
        )

    def position(self) -> Position | None:
        """The last batch that was begun. Raises `NotLocal`, `CheckpointMismatch`."""
        begun = self._batches("offsets")
        return self._position(begun[-1]) if begun else None

    def done(self) -> Offsets:
        """Where the last batch that is done ends. Raises `NotLocal`, `CheckpointMismatch`."""
        begun = set(self._batches("offsets"))
        done = [batch for batch in self._batches("commits") if batch in begun]
        return self._position(done[-1]).offsets if done else {}

    def _position(self, batch: int) -> Position:
        path = os.path.join(self.folder, "offsets", str(batch))
        # A version, a line about the batch, and one for each source.
        lines = self._env.disk.read_bytes(path).decode().splitlines()
        offsets: Offsets = {}
        for line in lines[2:]:
            found = None if line == "-" else json.loads(line)
            is_table = isinstance(found, dict) and isinstance(found.get("version"), int)
            if isinstance(found, dict) and not is_table:
                offsets |= from_json(found)
        return Position(batch, offsets, batch in self._batches("commits"))

    def set_aside(self) -> str:
        """Rename it; the new name. Raises `NotLocal`, OSError."""
        moment = _EPOCH + timedelta(milliseconds=self._env.clock.now_ms())
        aside = f"{self.folder}.before-{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03}Z"
        self._env.disk.rename(self.folder, aside)
        return aside

    def _batches(self, kind: str) -> list[int]:
        folder = os.path.join(self.folder, kind)
        if not self._env.disk.is_dir(folder):
            return []
        return sorted(int(name) for name in self._env.disk.list_dir(folder) if name.isdecimal())


def exists_for_spark(spark: Any, path: str) -> bool:
    """Whether there is one in a store that only Spark can reach."""
    hadoop_path = spark._jvm.org.apache.hadoop.fs.Path(path)
    files = hadoop_path.getFileSystem(spark._jsc.hadoopConfiguration())
    return any(
        files.exists(spark._jvm.org.apache.hadoop.fs.Path(hadoop_path, name))
        for name in ("metadata", "offsets")
    )
