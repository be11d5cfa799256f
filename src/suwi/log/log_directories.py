"""All data directories of a broker, and the assignment of partitions to them.

A new partition goes to the directory with the fewest partitions. A directory that fails takes only
its own partitions offline.
"""

import logging
from collections.abc import Iterator, Sequence
from posixpath import abspath

from suwi.env import Env
from suwi.env.problems import Problems, because
from suwi.log.checkpoints import ForeignDirectory, Identity
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory, Peek
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import NodeId, TopicId, TopicPartition

log = logging.getLogger(__name__)


class LogDirectories:
    def __init__(
        self, env: Env, paths: Sequence[str], files: FileCache, problems: Problems | None = None
    ) -> None:
        self.problems = problems = problems or Problems(env.clock)
        # Absolute from the start: clients see these paths.
        self._all = [LogDirectory(env, abspath(path), files, problems) for path in paths]
        self._assigned: dict[TopicPartition, LogDirectory] = {}
        self._counts = {directory.path: 0 for directory in self._all}
        self._has_unreadable = False

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def open(self) -> None:
        """Lock and read all. Raises DirectoryInUse; OSError if no directory is usable."""
        failed: OSError | None = None
        for directory in self._all:
            try:
                directory.open()
                for partition in directory.found_partitions():
                    self._assign(partition, directory)
            except OSError as error:
                directory.state.take_offline(error)
                self._has_unreadable = True
                failed = error
        if failed is not None and not self.usable():
            raise failed

    def known_cluster_id(self) -> str | None:
        """The cluster id in the directories; None if all are new."""
        for directory in self.usable():
            identity = directory.read_identity()
            if identity is not None:
                return identity.cluster_id
        return None

    def identify(self, node_id: NodeId, cluster_id: str) -> Identity:
        """Check that all directories belong to this broker and one cluster. Raises
        ForeignDirectory.

        New ones get the cluster id of the others, or `cluster_id`.
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

    def ids(self) -> tuple[str, ...]:
        """The directory ids of those that are usable and have one."""
        identities = (directory.read_identity() for directory in self.usable())
        return tuple(found.directory_id for found in identities if found and found.directory_id)

    @property
    def lost_power(self) -> bool:
        """Whether written records may be missing: after a power loss or damage, or if all are
        new."""
        used = [directory for directory in self.usable() if not directory.is_new]
        return not used or any(directory.may_lack_records for directory in used)

    def clear_power_loss(self) -> None:
        """The controller has recorded that records may be missing."""
        for directory in self.usable():
            directory.clear_power_loss()

    def usable(self) -> list[LogDirectory]:
        return [d for d in self._all if d.state.offline_because is None]

    def first_usable(self) -> str | None:
        """The path of the first one that is usable now."""
        return next((directory.path for directory in self.usable()), None)

    def directory_of(self, partition: TopicPartition, *, is_new: bool) -> LogDirectory:
        """The partition's directory; a new one is assigned if it has none. Raises
        KafkaStorageError.

        While a directory could not be read, a partition that was not found may be in that one.
        """
        assigned = self._assigned.get(partition)
        if assigned is not None:
            return assigned
        usable = self.usable()
        if not usable:
            raise KafkaStorageError("all data directories are offline")
        if self._has_unreadable and not is_new:
            raise KafkaStorageError(f"{partition} may be in a data directory that is offline")
        assigned = min(usable, key=lambda directory: self._counts[directory.path])
        self._assign(partition, assigned)
        return assigned

    def peek(self, partition: TopicPartition) -> Peek | None:
        """The age and size of a log's files, without opening it."""
        assigned = self._assigned.get(partition)
        if assigned is None or assigned.state.offline_because is not None:
            return None
        return assigned.peek(partition)

    def topic_id_of(self, partition: TopicPartition) -> TopicId | None:
        """The topic id in a partition's directory; None if it has none, or it is unreadable."""
        assigned = self._assigned.get(partition)
        if assigned is None or assigned.state.offline_because is not None:
            return None
        try:
            return assigned.topic_id_of(partition)
        except OSError as error:
            log.error("log directory unreadable", extra=because(error, partition=partition))
            return None

    def mark_for_deletion(self, partition: TopicPartition) -> list[str]:
        """Rename the partition's directory for deletion. Returns the paths to be removed later."""
        paths = []
        for directory in self.usable():
            try:
                path = directory.mark_for_deletion(partition)
            except OSError as error:
                # Not retried: the next start finds it again.
                log.error(
                    "cannot mark partition for deletion", extra=because(error, partition=partition)
                )
                directory.state.failed(error)
                continue
            if path is not None:
                paths.append(path)
        self.forget(partition)
        return paths

    def forget(self, partition: TopicPartition) -> None:
        """The partition was deleted."""
        assigned = self._assigned.pop(partition, None)
        if assigned is not None:
            self._counts[assigned.path] -= 1

    def _assign(self, partition: TopicPartition, directory: LogDirectory) -> None:
        self._assigned[partition] = directory
        self._counts[directory.path] += 1
