"""A pipeline's checkpoint: whether there is one, where it stands, how much that is; `set_aside`.

`Checkpoint` looks at the files, `ask_beginnings` and `ask_between` at the brokers.
Invariant: nothing is deleted. A checkpoint that is set aside is renamed, and can be renamed back.
"""

import json
import os
import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.env import Env, local_env
from suwi.model.ids import NO_OFFSET, TopicPartition
from suwi.spark.offset_resolver import OffsetResolver
from suwi.spark.offsets import Offsets, from_json
from suwi.spark.options import SourceOptions, read_source_options
from suwi.spark.pipeline.checks import source_options
from suwi.spark.pipeline.spec import TopicSource
from suwi.spark.pipeline.steps import Between
from suwi.spark.session import Session

_FILE = "file:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotLocal(Exception):
    """The checkpoint is not on this machine: only Spark, and its store's tools, can get at it."""


@dataclass(frozen=True, slots=True)
class Position:
    batch: int
    offsets: Offsets
    """Where it ends; of one source, the first."""
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
        """The last batch that was begun. Raises `NotLocal`."""
        begun, done = self._batches("offsets"), self._batches("commits")
        if not begun:
            return None
        path = os.path.join(self.folder, "offsets", str(begun[-1]))
        # A version, a line about the batch, and one for each source.
        lines = self._env.disk.read_bytes(path).decode().splitlines()
        found: Mapping[str, Any] = json.loads(lines[2]) if len(lines) > 2 else {}
        is_table = "version" in found  # The offset of a table has no topics.
        return Position(begun[-1], {} if is_table else from_json(found), begun[-1] in done)

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


class Extent(NamedTuple):
    partition: str
    earliest: int
    start: int
    """Where it stands, or where a range begins."""
    end: int

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def ask_beginnings(source: TopicSource, offsets: Offsets) -> list[Extent]:
    """Where the partitions of a checkpoint begin and end. Raises `BrokerError`, OSError.

    Those of a topic that is gone, of which there is nothing to be read again, are as they stand.
    """
    options = _options(source)
    session = Session(options.connection)
    try:
        names = {topic.name for topic in session.run(session.cluster.topics())}
        there = [partition for partition in offsets if partition.topic in names]
        earliest = {**offsets, **_ask(session, dict.fromkeys(there, EARLIEST))}
        latest = {**offsets, **_ask(session, dict.fromkeys(there, LATEST))}
    finally:
        session.close()
    return [
        Extent(str(partition), earliest[partition], offsets[partition], latest[partition])
        for partition in sorted(offsets)
    ]


def ask_between(source: TopicSource, between: Between) -> list[Extent]:
    """The offsets of a range of time. Raises `BrokerError`, OSError."""
    options = _options(source)
    session = Session(options.connection)
    try:
        partitions = session.run(OffsetResolver(session.cluster, options).partitions())
        earliest = _ask(session, dict.fromkeys(partitions, EARLIEST))
        latest = _ask(session, dict.fromkeys(partitions, LATEST))
        start = _ask(session, dict.fromkeys(partitions, between.start_ms))
        end = _ask(session, dict.fromkeys(partitions, between.end_ms))
    finally:
        session.close()
    return [
        Extent(
            str(one),
            earliest[one],
            _or(start[one], latest[one]),
            _or(end[one], latest[one]),
        )
        for one in sorted(partitions)
    ]


def _or(offset: int, otherwise: int) -> int:
    return otherwise if offset == NO_OFFSET else offset


def _ask(session: Session, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    found = session.run(list_offsets(session.cluster, times)) if times else {}
    return {partition: one.offset for partition, one in found.items()}


def _options(source: TopicSource) -> SourceOptions:
    disk = local_env().disk
    texts = source_options(source)
    return read_source_options(
        {name: text.resolve(os.environ, disk) for name, text in texts.items()}, streaming=True
    )
