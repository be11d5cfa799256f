"""All data directories of a broker, and which partition lies in which.

A new partition goes where the fewest are. A directory that fails takes its own partitions offline
and no others.
"""

import logging
from collections.abc import Iterator, Sequence
from posixpath import abspath

from suwi.env import Env
from suwi.log.directory_identity import ForeignDirectory, Identity
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory, Peek
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import NodeId, TopicPartition

log = logging.getLogger(__name__)


class LogDirectories:
    def __init__(self, env: Env, paths: Sequence[str], files: FileCache) -> None:
        # Once and for all: clients are told these paths, and a relative one means nothing to them.
        self._all = [LogDirectory(env, abspath(path), files) for path in paths]
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._counts = {directory.path: 0 for directory in self._all}
        self._some_unread = False

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def open(self) -> None:
        """Take possession of all. Raises DirectoryInUse; OSError where not one can be used."""
        failed: OSError | None = None
        for directory in self._all:
            try:
                directory.open()
                for partition in directory.found_partitions():
                    self._settle(partition, directory)
            except OSError as error:
                directory.state.take_offline(error)
                self._some_unread = True
                failed = error
        if failed is not None and not self.usable():
            raise failed

    def known_cluster_id(self) -> str | None:
        """Of which cluster the directories are, if any was used before."""
        for directory in self.usable():
            identity = directory.read_identity()
            if identity is not None:
                return identity.cluster_id
        return None

    def identify(self, node_id: NodeId, cluster_id: str) -> Identity:
        """Make sure that all belong to this broker and one cluster. Raises ForeignDirectory.

        New ones join the others, or become this cluster's.
        """
        first: Identity | None = None
        for directory in self.usable():
            found = directory.identify(node_id, first.cluster_id if first else cluster_id)
            if first is not None and found.cluster_id != first.cluster_id:
                raise ForeignDirectory(
                    f"{directory.path} belongs to cluster {found.cluster_id}, the others to "
                    f"{first.cluster_id}"
                )
            first = first or found
        assert first is not None
        return first

    @property
    def lost_power(self) -> bool:
        """Whether records may be missing that were written: after a power loss, or all is new."""
        used = [directory for directory in self.usable() if not directory.is_new]
        return not used or any(directory.lost_power for directory in used)

    def trust(self) -> None:
        """What may be missing is known to the controller."""
        for directory in self.usable():
            directory.trust()

    def usable(self) -> list[LogDirectory]:
        return [d for d in self._all if d.state.offline_because is None]

    def home_of(self, partition: TopicPartition, *, is_new: bool) -> LogDirectory:
        """Where the partition lies or, if it is new, will lie. Raises KafkaStorageError.

        While a directory could not be opened, one that is not found may lie there.
        """
        home = self._homes.get(partition)
        if home is not None:
            return home
        usable = self.usable()
        if not usable:
            raise KafkaStorageError("no data directory can be used any more")
        if self._some_unread and not is_new:
            raise KafkaStorageError(f"{partition} may lie in a data directory that is offline")
        home = min(usable, key=lambda directory: self._counts[directory.path])
        self._settle(partition, home)
        return home

    def peek(self, partition: TopicPartition) -> Peek | None:
        """How old and how large a log's files are, without opening it."""
        home = self._homes.get(partition)
        if home is None or home.state.offline_because is not None:
            return None
        return home.peek(partition)

    def forget(self, partition: TopicPartition) -> None:
        """The partition was deleted."""
        home = self._homes.pop(partition, None)
        if home is not None:
            self._counts[home.path] -= 1

    def _settle(self, partition: TopicPartition, home: LogDirectory) -> None:
        self._homes[partition] = home
        self._counts[home.path] += 1
