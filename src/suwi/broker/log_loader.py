"""The logs that a broker finds at its start: which are its own still, and which must be recovered.

Enters at `load`, after the metadata is known and before anybody reads a log.
Invariant: the directory of a deleted topic is never found by another topic of its name.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId, TopicPartition
from suwi.replica.partition import Partition
from suwi.replica.recovery import recover_all
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogLoader:
    node_id: NodeId
    directories: LogDirectories
    replicas: ReplicaManager
    delete_later: Callable[[str], None]
    """Takes the path of a directory that was put away."""
    adopts: bool
    """Whether topics are made of data that the metadata does not know."""

    async def load(self) -> None:
        """After an unclean stop: check every log before anybody reads it."""
        async with self.replicas.paused:
            await self._load()

    async def _load(self) -> None:
        self._mark_deleted_topics()
        known = {partition.partition: partition for partition in self.replicas}
        to_recover: list[Partition] = []
        for directory in self.directories.usable():
            found = directory.found_partitions()
            strangers = [str(tp) for tp in found if tp not in known]
            if strangers and not self.adopts:
                log.warning("directories of unknown topics left alone", extra={"dirs": strangers})
            if not directory.was_clean:
                to_recover += [known[tp] for tp in found if tp in known]
        if to_recover:
            await recover_all(to_recover)

    def _mark_deleted_topics(self) -> None:
        """Topics that were deleted while this broker was away.

        One that does not say whose it is, as after a power loss, may be that of a topic that is
        gone: set aside, it is neither found by another topic of its name nor lost.
        """
        image = self.replicas.image
        deleted = image.deletions.get(self.node_id, frozenset())
        for directory in self.directories.usable():
            for tp in directory.found_partitions():
                is_known = tp.topic in image.topics
                if not deleted and (is_known or self.adopts):
                    continue
                try:
                    self._mark_if_deleted(directory, tp, deleted)
                except PermissionError as error:
                    log.error(
                        "directory cannot be read",
                        extra={"partition": str(tp), "reason": str(error)},
                    )

    def _mark_if_deleted(
        self, directory: LogDirectory, tp: TopicPartition, deleted: Collection[UUID]
    ) -> None:
        topic_id = directory.topic_id_of(tp)
        if topic_id in deleted:
            path = directory.mark_for_deletion(tp)
        elif topic_id is not None or self.adopts:
            return
        elif tp.topic in self.replicas.image.topics:
            directory.forget_recovery_point(tp)
            return
        else:
            path = directory.mark_unknown_for_deletion(tp)
        if path is not None:
            self.delete_later(path)
        self.directories.forget(tp)
