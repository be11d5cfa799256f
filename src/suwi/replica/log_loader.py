"""Start-up of the log directories: marks deleted topics for deletion, recovers logs after a crash.

`load` runs after the metadata image is loaded, and before the broker registers and any log is read.
Invariant: a topic never opens the directory of a deleted topic with the same name.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from suwi.env.problems import because
from suwi.env.slices import in_slices
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_LOGS_A_JOB = 32
_LOOKED_AT_IN_A_SLICE = 100
"""The topic id of each may be read."""
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
        known = {partition.partition: partition for partition in self.replicas}
        to_recover: list[Partition] = []
        for directory in self.directories.usable():
            unknown: list[str] = []
            async for tp in self._found(directory):
                if tp not in known:
                    unknown.append(str(tp))
                elif not directory.was_clean:
                    to_recover.append(known[tp])
            if unknown and not self.adopts:
                log.warning("directories of unknown topics ignored", extra={"dirs": unknown})
        if to_recover:
            await recover_all(to_recover)

    async def _found(self, directory: LogDirectory) -> AsyncIterator[TopicPartition]:
        """The partitions in a directory, without those of topics that were deleted while this
        broker was down: their directories are marked for deletion."""
        loop, image = asyncio.get_running_loop(), self.replicas.image
        deleted = frozenset[UUID]().union(*image.deletions.get(self.node_id, {}).values())
        found = await loop.run_in_executor(None, directory.found_partitions)
        async for tp in in_slices(found, _LOOKED_AT_IN_A_SLICE):
            try:
                may_be_deleted = deleted or not (tp.topic in image.topics or self.adopts)
                if may_be_deleted and self._mark_if_deleted(directory, tp, deleted):
                    continue
            except PermissionError as error:
                log.error("log directory unreadable", extra=because(error, partition=tp))
            yield tp

    def _mark_if_deleted(
        self, directory: LogDirectory, tp: TopicPartition, deleted: Collection[UUID]
    ) -> bool:
        """Whether the directory is not the partition's any more.

        Without a topic id, as after a power loss, it may belong to a deleted topic. It is set
        aside: no other topic of that name opens it, and its data is not lost.
        """
        topic_id = directory.topic_id_of(tp)
        if topic_id in deleted:
            path = directory.mark_for_deletion(tp)
        elif topic_id is not None or self.adopts:
            return False
        elif tp.topic in self.replicas.image.topics:
            # It may be an earlier topic's: it does not confirm these records.
            directory.checkpoints.recovery_points.pop(tp, None)
            return False
        else:
            path = directory.mark_unknown_for_deletion(tp)
        if path is not None:
            self.delete_later(path)
        self.directories.forget(tp)
        return True


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
