"""The log directory of one partition, and the partition's entries in its checkpoints.

There is one for each replica all the time, so it is small.
"""

from collections.abc import Callable
from typing import NamedTuple

from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.log.offset_checkpoints import Due
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import Steps
from suwi.metadata.image import PartitionState
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig


class OwnReplica(NamedTuple):
    """What the metadata says of this broker's replica."""

    leader_epoch: LeaderEpoch | None = None
    has_other_replicas: bool = False
    is_out_of_sync: bool = False

    @classmethod
    def of(
        cls, node_id: NodeId, state: PartitionState | None, *, is_registered: bool
    ) -> "OwnReplica":
        """`is_registered`: the state is as new as this broker's registration. Before that, its
        leader may still be bringing it back into the ISR because of what it fetched earlier."""
        if state is None:
            return cls()
        is_complete = node_id in state.isr or node_id in state.elr
        is_out_of_sync = is_registered and state.leader != NO_NODE and not is_complete
        return cls(state.leader_epoch, len(state.replicas) > 1, is_out_of_sync)


class PartitionStorage:
    __slots__ = ("_directories", "_due", "_is_new", "_partition", "_state_of", "_topic_id")

    def __init__(
        self,
        directories: LogDirectories,
        partition: TopicPartition,
        topic_id: TopicId,
        state_of: Callable[[TopicPartition], OwnReplica],
        *,
        is_new: bool,
    ) -> None:
        """`is_new`: the topic was just created."""
        self._directories = directories
        self._partition = partition
        self._topic_id = topic_id
        self._state_of = state_of
        self._is_new = is_new
        self._due: list[Due] = []

    def opening_log(self, config: TopicConfig) -> Steps[PartitionLog]:
        """Raises KafkaStorageError, OSError."""
        storage = self._directories.directory_of(self._partition, is_new=self._is_new)
        state = self._state_of(self._partition)
        return storage.opening(
            self._partition,
            self._topic_id,
            config,
            state.leader_epoch,
            has_other_replicas=state.has_other_replicas,
            is_out_of_sync=state.is_out_of_sync,
        )

    def failed(self, error: OSError) -> KafkaStorageError:
        """Classify a failure to open the log. Returns the error to respond with."""
        return self._directory.state.failed(error)

    @property
    def checkpointed_watermark(self) -> Offset | None:
        """The high watermark of the last checkpoint, if it has one."""
        return self._directory.checkpoints.high_watermarks.get(self._partition)

    def lower_watermark(self, high_watermark: Offset) -> None:
        """Lower the high watermark in the checkpoint, if it is above."""
        self._due += self._directory.checkpoints.lower_watermark(self._partition, high_watermark)

    def log_truncated(self, truncated: PartitionLog, high_watermark: Offset) -> None:
        """The log was truncated: lower its checkpointed offsets."""
        self.lower_watermark(high_watermark)
        self._due += self._directory.checkpoints.log_truncated(truncated)

    @property
    def has_due(self) -> bool:
        """Whether a checkpoint must be written before the next append."""
        return any(not self._directory.checkpoints.is_written(due) for due in self._due)

    def writing_due(self) -> Steps[None]:
        """Write the checkpoints that are due. Raises KafkaStorageError."""
        while self._due:
            state, checkpoints = self._directory.state, self._directory.checkpoints
            due = self._due[0]
            if not checkpoints.is_written(due):
                state.check()
                try:
                    yield checkpoints.job_for(due.checkpoint)
                except OSError as error:
                    raise state.failed(error) from error
            self._due = [other for other in self._due if not checkpoints.is_written(other)]

    @property
    def _directory(self) -> LogDirectory:
        """The data directory of a log that is open."""
        return self._directories.directory_of(self._partition, is_new=False)
