"""A data directory: its logs, lock, identity and checkpoints.

`open` locks the directory and reads its checkpoints; after that `opening` opens (and recovers) a
partition's log on first use. `close` writes the clean-shutdown file.
Invariant: the clean-shutdown file exists only while no broker uses the directory.
"""

import json
import logging
from contextlib import closing, suppress
from posixpath import dirname
from typing import NamedTuple

from suwi.env import AlreadyLocked, Disk, Env, Lock
from suwi.env.problems import Problems
from suwi.log import checkpoints, names
from suwi.log.batch_scan import scan_batches
from suwi.log.checkpoints import (
    ForeignDirectory,
    Identity,
    read_identity,
    topic_id_text,
    write_identity,
)
from suwi.log.directory_state import DirectoryState
from suwi.log.file_cache import FileCache, write_all
from suwi.log.offset_checkpoints import OffsetCheckpoints
from suwi.log.partition_log import PartitionLog
from suwi.log.recovery import OpenOptions, opening_log
from suwi.log.running_mark import RunningMark, rewrite_unsynced
from suwi.log.sliced_work import Job, Steps
from suwi.model.errors import CorruptMessage, KafkaStorageError
from suwi.model.ids import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig

log = logging.getLogger(__name__)

_PROBE_BYTES = 1 << 20
"""The least free space of a disk that is not full."""


class UnreadableTopicId(KafkaStorageError):
    """The directory has records, and their topic is unknown.

    A power loss may leave `partition.metadata`, which has the topic id, empty, and damage can make
    it unreadable. Then the records beside it may be from the topic or from a deleted topic with the
    same name (hazard 21). Records of an unknown topic are not deleted.
    """

    def __init__(self, partition: TopicPartition, directory: str, topic_id: TopicId) -> None:
        super().__init__(
            f"{partition} is offline: {directory}/{names.PARTITION_METADATA} is unreadable, so it "
            "is not known which topic the records there belong to. They are kept. To use them, "
            f"stop the broker and run: suwi repair partition-metadata {directory} "
            f"--topic-id {topic_id_text(topic_id)}"
        )


def holds_batches(disk: Disk, directory: str) -> bool:
    """Whether some segment of a partition's directory starts with a valid batch. Raises OSError.

    Batches after invalid bytes are not part of a log: recovery would remove them.
    """
    found = disk.list_dir(directory)
    paths = [f"{directory}/{name}" for name in found if names.is_segment(name)]
    return any(_starts_with_a_batch(disk, path) for path in paths)


def _starts_with_a_batch(disk: Disk, path: str) -> bool:
    with closing(disk.open(path)) as file, suppress(CorruptMessage):
        return any(True for _ in scan_batches(file, 0, file.size()))
    return False


class DirectoryInUse(Exception):
    """Another broker has locked the directory."""


class Peek(NamedTuple):
    """A log's files, without opening the log."""

    oldest_ms: int
    """When the oldest segment was last modified."""
    size_bytes: int
    segments: int


class LogDirectory:
    def __init__(
        self, env: Env, path: str, files: FileCache, problems: Problems | None = None
    ) -> None:
        self.path = path
        self.state = DirectoryState(
            path,
            problems or Problems(env.clock),
            lambda _: self._mark_unsynced(),
            lambda: self._running.write(lost_records=True),
        )
        self.was_clean = True
        self.is_new = False
        """No broker has used it before."""
        self.lost_power = False
        """Unsynced data may be lost: the machine has rebooted since, or a sync failed."""
        self._env = env
        self.disk = self._disk = env.disk
        self._files = files
        self._lock: Lock | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.checkpoints = OffsetCheckpoints(self._disk, path, self.state, self._logs)
        self._running = RunningMark(self._disk, path)

    # -- opening -------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the directory and read its checkpoints. Raises `DirectoryInUse`."""
        make_lasting_dirs(self._disk, self.path)
        try:
            self._lock = self._disk.lock(self._at(names.LOCK))
        except AlreadyLocked:
            raise DirectoryInUse(
                f"{self.path} is in use by another broker (it holds {self._at(names.LOCK)})"
            ) from None
        self.was_clean = self._disk.exists(self._at(names.CLEAN_SHUTDOWN))
        self.is_new = not self._disk.exists(self._at(names.META_PROPERTIES))
        self.lost_power = not self.was_clean and not self._running.is_of_this_boot()
        if self.lost_power and not self.is_new:
            failed = "syncs failed in the last run"
            stopped = f"the machine stopped meanwhile, or {names.RUNNING} is lost or damaged"
            reason = failed if self._running.is_unsynced() else stopped
            log.warning("records may be missing", extra={"dir": self.path, "reason": reason})
        self.state.lost_records = self._running.has_lost_records()
        self.checkpoints.read(
            must_exist=self.was_clean and bool(self.found_partitions()), lost_power=self.lost_power
        )
        if self._running.is_unsynced():
            for partition in self.found_partitions():
                recovery_point = self.checkpoints.recovery_point_of(partition)
                rewrite_unsynced(self._disk, self.dir_of(partition), recovery_point)

    def identify(self, node_id: NodeId, cluster_id: str) -> Identity:
        """Read the directory's identity; a new directory gets `node_id` and `cluster_id`."""
        found = self.read_identity()
        if found is None:
            if self.found_partitions():
                log.warning(
                    "meta.properties missing, writing it again",
                    extra={"dir": self.path, "broker": node_id, "cluster": cluster_id},
                )
            found = write_identity(
                self._disk,
                self._at(names.META_PROPERTIES),
                cluster_id,
                node_id,
                self._env.random.uuid(),
            )
        if found.node_id != node_id:
            raise ForeignDirectory(
                f"{self.path} belongs to broker {found.node_id} of cluster {found.cluster_id}, "
                f"not to broker {node_id}"
            )
        return found

    def read_identity(self) -> Identity | None:
        return read_identity(self._disk, self._at(names.META_PROPERTIES))

    def _mark_unsynced(self) -> None:
        if self._lock is not None:  # Without the lock it may be another broker's directory.
            self._running.write_unsynced()

    @property
    def may_lack_records(self) -> bool:
        """Whether written records may be missing, and no controller knows it yet."""
        return self.lost_power or self.state.lost_records

    def clear_power_loss(self) -> None:
        """The controller has recorded that records may be missing."""
        self.is_new = False
        if self.may_lack_records:
            self.lost_power = self.state.lost_records = False
            self._running.write()

    def begin(self) -> None:
        """The directory is about to change: remove the clean-shutdown file."""
        self.checkpoints.write_missing()
        self._running.write(lost_power=self.lost_power, lost_records=self.state.lost_records)
        if self._disk.exists(self._at(names.CLEAN_SHUTDOWN)):
            self._disk.remove(self._at(names.CLEAN_SHUTDOWN))
            self._disk.sync_dir(self.path)

    def space(self) -> tuple[int, int]:
        """The total and the free bytes of its file system."""
        return self._disk.total_bytes(self.path), self._disk.free_bytes(self.path)

    def probe_space(self) -> None:
        """Whether there is space again: raises OSError while there is none."""
        path = self._at(names.SPACE_PROBE)
        file = self._disk.open(path, create=True)
        try:
            write_all(file, bytes(_PROBE_BYTES), 0)
        finally:
            file.close()
            self._disk.remove(path)

    # -- logs ----------------------------------------------------------------------------------

    def found_partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here."""
        parsed = map(names.parse_partition_dir_name, self._disk.list_dirs(self.path))
        return [partition for partition in parsed if partition is not None]

    def leftovers(self) -> list[str]:
        """Directories of deleted partitions that are not removed yet."""
        return [
            self._at(name)
            for name in self._disk.list_dir(self.path)
            if name.endswith(names.DELETE_DIR)
        ]

    def dir_of(self, partition: TopicPartition) -> str:
        return self._at(names.partition_dir_name(partition))

    def topic_id_of(self, partition: TopicPartition) -> TopicId | None:
        """The topic id in a partition's directory; None if missing or unreadable."""
        return checkpoints.read_topic_id(self._disk, self._metadata_of(partition))

    def _metadata_of(self, partition: TopicPartition) -> str:
        return f"{self.dir_of(partition)}/{names.PARTITION_METADATA}"

    def peek(self, partition: TopicPartition) -> "Peek | None":
        """The age and size of a log's files, without opening it; None if it has none."""
        directory = self.dir_of(partition)
        if not self._disk.exists(directory):
            return None
        logs = [
            f"{directory}/{name}"
            for name in self._disk.list_dir(directory)
            if name.endswith(names.LOG)
        ]
        if not logs:
            return None
        size_bytes = sum(self._disk.size(log) for log in logs)
        return Peek(self._disk.modified_ms(logs[0]), size_bytes, len(logs))

    def holds(self, partition: TopicPartition) -> bool:
        """Whether the partition's log is open."""
        return partition in self._logs

    def opened_logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def opening(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        leader_epoch_max: LeaderEpoch | None,
        *,
        has_other_replicas: bool = False,
        is_out_of_sync: bool = False,
        is_adopted: bool = False,
    ) -> Steps[PartitionLog]:
        """The partition's log, opened (and recovered after an unclean shutdown) at the first call.

        `is_out_of_sync`: the partition has a leader, and this replica is neither in sync nor may it
        be elected as if it were.

        A directory of an earlier topic with the same name is marked for deletion first. Raises
        OSError, and UnreadableTopicId if the directory's topic is unknown and that matters.
        """
        known = self._logs.get(partition)
        if known is not None:
            return known
        directory = self.dir_of(partition)
        is_new = not self._disk.exists(directory)
        if not is_new:
            may_be_empty = is_out_of_sync or (has_other_replicas and self.lost_power)
            is_new = self._mark_other_topic_for_deletion(partition, topic_id, may_be_empty)
        if is_new:
            yield from self.checkpoints.forgetting(partition)
            # The first file in the directory: if a power loss leaves records, it leaves this file
            # too, though perhaps empty.
            self._disk.make_dirs(directory)
            checkpoints.write_topic_id(self._disk, self._metadata_of(partition), topic_id)
        options = OpenOptions(
            now_ms=self._env.clock.now_ms(),
            clean=self.was_clean or is_new,
            start_offset=self.checkpoints.start_offsets.get(partition, Offset(0)),
            recovery_point=self.checkpoints.recovery_point_of(partition),
            lost_power=self.lost_power,
            leader_epoch_max=leader_epoch_max,
            was_compacted=partition in self.checkpoints.cleaned_to,
            is_adopted=is_adopted,
        )
        opened = yield from opening_log(
            self._files, directory, partition, config, self.state, options
        )
        opened.cleaned_to = self.checkpoints.cleaned_to.get(partition, opened.start_offset)
        if config.segment_jitter_ms:
            opened.roll_jitter_ms = self._env.random.below(config.segment_jitter_ms)
        self._logs[partition] = opened
        return opened

    def _mark_other_topic_for_deletion(
        self, partition: TopicPartition, topic_id: TopicId, may_be_empty: bool
    ) -> bool:
        """Hazard 21: data of a deleted topic must not reappear under a new topic with its name."""
        path = self._metadata_of(partition)
        found = checkpoints.read_topic_id(self._disk, path)
        if found == topic_id:
            return False
        if found is None:
            if self._disk.exists(path) and self._may_have_foreign_records(partition):
                if not may_be_empty:
                    # The controller would consider an empty replica complete.
                    raise UnreadableTopicId(partition, self.dir_of(partition), topic_id)
                self.set_aside(partition)
                return True
            log.warning("topic id missing, writing it again", extra={"path": path})
            # Not in a thread: a new topic could have this name before it is done.
            checkpoints.write_topic_id(self._disk, path, topic_id, sync=True)
            return False
        log.warning(
            "stray topic directory marked for deletion",
            extra={"partition": str(partition), "topic_id": str(found)},
        )
        self.mark_for_deletion(partition)
        return True

    def _may_have_foreign_records(self, partition: TopicPartition) -> bool:
        """Whether a directory with an unreadable topic id has records that may be another topic's.

        A power loss may empty the file, but not beside synced records: they are synced together.
        """
        if self._has_synced_records(partition):
            return False
        return holds_batches(self._disk, self.dir_of(partition))

    def _has_synced_records(self, partition: TopicPartition) -> bool:
        """Whether the recovery point shows that part of the log was synced."""
        bases = [
            names.parse_offset_name(name, names.LOG)
            for name in self._disk.list_dir(self.dir_of(partition))
        ]
        recovery_point = self.checkpoints.recovery_point_of(partition)
        return any(base is not None and base < recovery_point for base in bases)

    def mark_for_deletion(self, partition: TopicPartition) -> str | None:
        """Rename a partition's directory for deletion. Returns the path to be removed later."""
        return self._rename(partition, names.DELETE_DIR)

    def mark_unknown_for_deletion(self, partition: TopicPartition) -> str | None:
        """As `mark_for_deletion`, without a topic id: a directory with records is set aside."""
        if not holds_batches(self._disk, self.dir_of(partition)):
            return self.mark_for_deletion(partition)
        self.set_aside(partition)
        return None

    def set_aside(self, partition: TopicPartition) -> None:
        """Rename a partition's directory so that it is neither used nor removed."""
        path = self._rename(partition, names.STRAY_DIR)
        log.warning(
            "stray topic directory set aside", extra={"partition": str(partition), "path": path}
        )

    def removing_damaged_files(self, partition: TopicPartition) -> Job:
        """Removes what was set aside of a damaged log; there is a new copy of it."""
        directory = self.dir_of(partition)

        def remove() -> None:
            with suppress(FileNotFoundError):
                for name in self._disk.list_dir(directory):
                    if name.endswith(names.DAMAGED):
                        self._disk.remove(f"{directory}/{name}")

        return remove

    def _rename(self, partition: TopicPartition, ending: str) -> str | None:
        opened = self._logs.pop(partition, None)
        directory = self.dir_of(partition)
        self.checkpoints.drop(partition)
        if opened is not None:
            opened.close()
        # Also if opening failed halfway: otherwise the next log would write into the old files.
        self._files.forget_dir(directory)
        if not self._disk.exists(directory):
            return None
        unique = self._env.random.uuid().hex
        renamed = self._at(names.renamed_dir_name(partition, unique, ending))
        self._disk.rename(directory, renamed)
        return renamed

    # -- closing -------------------------------------------------------------------------------

    def close(self, *, clean: bool) -> None:
        """Release the directory. `clean`: everything was synced, so mark a clean shutdown."""
        if self._lock is None:
            return  # It was never locked.
        checkpoints = self.checkpoints
        whole = clean and self.state.offline_because is None
        whole = whole and checkpoints.write(checkpoints.recovery_points_job())
        if whole and checkpoints.write(checkpoints.start_offsets_job()):
            self._mark_clean()
        self._files.forget_tree(self.path)
        self._lock.release()
        self._lock = None

    def _mark_clean(self) -> None:
        mark = json.dumps({"version": 0, "brokerEpoch": -1}).encode()
        try:
            self._disk.write_atomically(self._at(names.CLEAN_SHUTDOWN), mark)
        except OSError as error:
            self.state.failed(error)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"


def make_lasting_dirs(disk: Disk, path: str) -> None:
    """Create a directory and its parents so that they survive a power loss."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = dirname(path)
    if missing:
        disk.make_dirs(missing[0])
    for made in missing:
        disk.sync_dir(dirname(made) or ".")
