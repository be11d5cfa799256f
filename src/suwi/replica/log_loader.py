"""Start-up of the log directories: marks deleted topics for deletion, recovers logs after a crash.

`load` runs after the metadata image is loaded, and before the broker registers and any log is read.
Invariant: a topic never opens the directory of a deleted topic with the same name.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from suwi.env.problems import because
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_LOGS_A_JOB = 32
_PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class LogLoader:
    node_id: NodeId
    directories: LogDirectories
    replicas: ReplicaManager
    delete_later: Callable[[str], None]
    """Called with the path of a directory that was marked for deletion."""
    adopts: bool
    """Whether topics are created for data that the metadata lacks."""

    async def load(self) -> None:
        """Mark deleted topics; after an unclean shutdown recover every log."""
        async with self.replicas.applying:
            await self._load()

    async def _load(self) -> None:
        self._mark_deleted_topics()
        known = {partition.partition: partition for partition in self.replicas}
        to_recover: list[Partition] = []
        for directory in self.directories.usable():
            found = directory.found_partitions()
            unknown = [str(tp) for tp in found if tp not in known]
            if unknown and not self.adopts:
                log.warning("directories of unknown topics ignored", extra={"dirs": unknown})
            if not directory.was_clean:
                to_recover += [known[tp] for tp in found if tp in known]
        if to_recover:
            await recover_all(to_recover)

    def _mark_deleted_topics(self) -> None:
        """Mark the directories of topics that were deleted while this broker was down.

        A directory without a topic id, as after a power loss, may belong to a deleted topic. It is
        set aside: no other topic of that name opens it, and its data is not lost.
        """
        image = self.replicas.image
        deleted = frozenset[UUID]().union(*image.deletions.get(self.node_id, {}).values())
        for directory in self.directories.usable():
            for tp in directory.found_partitions():
                is_known = tp.topic in image.topics
                if not deleted and (is_known or self.adopts):
                    continue
                try:
                    self._mark_if_deleted(directory, tp, deleted)
                except PermissionError as error:
                    log.error("log directory unreadable", extra=because(error, partition=tp))

    def _mark_if_deleted(
        self, directory: LogDirectory, tp: TopicPartition, deleted: Collection[UUID]
    ) -> None:
        topic_id = directory.topic_id_of(tp)
        if topic_id in deleted:
            path = directory.mark_for_deletion(tp)
        elif topic_id is not None or self.adopts:
            return
        elif tp.topic in self.replicas.image.topics:
            # It may be an earlier topic's: it does not confirm these records.
            directory.checkpoints.recovery_points.pop(tp, None)
            return
        else:
            path = directory.mark_unknown_for_deletion(tp)
        if path is not None:
            self.delete_later(path)
        self.directories.forget(tp)


async def recover_all(partitions: Sequence[Partition]) -> None:
    """Open and check every log, which may take minutes. Logs its progress every few seconds."""
    log.info("recovering logs after an unclean shutdown", extra={"partitions": len(partitions)})
    loop = asyncio.get_running_loop()
    logged_s = loop.time()
    for first in range(0, len(partitions), _LOGS_A_JOB):
        some = partitions[first : first + _LOGS_A_JOB]
        # Nothing else uses the logs: no image is applied, and the broker is not in service yet.
        await loop.run_in_executor(None, _open, some)
        if loop.time() - logged_s >= _PROGRESS_EVERY_S:
            logged_s = loop.time()
            log.info("logs recovered", extra={"done": first + len(some), "of": len(partitions)})
    for partition in partitions:
        # A power loss may have lowered high watermarks. One checkpoint write covers all of them.
        with suppress(BrokerError):
            if not partition.replica_log.prepare():
                await partition.replica_log.wait_for_preparation()
    log.info("log recovery complete", extra={"partitions": len(partitions)})


def _open(partitions: Sequence[Partition]) -> None:
    for partition in partitions:
        try:
            partition.replica_log.open()
        except BrokerError as error:
            # Its data directory failed; partitions in other directories are not affected.
            log.error("log recovery failed", extra=because(error, partition=partition.partition))
