"""Syncs a log in a thread: runs a `SyncJob` and reports its result to the log.

`sync_log` syncs once, `syncing` does so as a step of a change to a log. `LogSyncer` syncs a
replica's log as often as `flush.messages` requires.
"""

import asyncio
from functools import partial

from suwi.log.log_durability import SyncJob
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import Steps
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset
from suwi.replica.log_threads import start_in_sync_thread
from suwi.replica.replica_log import ReplicaLog

_RETRY_S = 1.0


class LogSyncer:
    """Syncs the log of one replica, one sync at a time, as leader or follower."""

    __slots__ = ("_replica_log", "task")

    def __init__(self, replica_log: ReplicaLog) -> None:
        self._replica_log = replica_log
        self.task: asyncio.Task[None] | None = None
        """Runs until no sync is due. Owned by this replica; ends when the replica is closed."""

    def sync_if_due(self, partition_log: PartitionLog) -> None:
        unsynced = partition_log.end_offset - partition_log.recovery_point
        is_due = (
            unsynced >= partition_log.config.flush_messages
            or not partition_log.durability.truncation_is_safe
        )
        if self.task is None and is_due:
            self.task = self._replica_log.context.tasks.start(
                partial(self._sync_until_done, partition_log),
                name="log sync",
                on_failure=self._failed,
            )

    def _failed(self, error: Exception) -> None:
        """An unexpected error: delayed produces fail, and the next append starts a new sync."""
        replica_log = self._replica_log
        replica_log.fail_delayed(
            KafkaStorageError(f"{replica_log.partition} cannot be synced: {error!r}")
        )

    async def _sync_until_done(self, partition_log: PartitionLog) -> None:
        """One sync completes all operations that wait; later ones wait for the next sync."""
        replica_log = self._replica_log
        try:
            while replica_log.closed is None:
                try:
                    if not await self.sync_once(partition_log):
                        return
                except KafkaStorageError as error:
                    replica_log.fail_delayed(error)
                    if partition_log.directory.is_closed or partition_log.state.offline_because:
                        return
                    # What is committed may not be visible before it is synced.
                    await asyncio.sleep(_RETRY_S)
                    continue
                if replica_log.delayed_syncs is not None:
                    replica_log.delayed_syncs.committed(partition_log.recovery_point)
                if replica_log.leader_replica is not None:
                    replica_log.leader_replica.log_synced(partition_log)
                if partition_log.config.flush_messages > 1:
                    return
        finally:
            self.task = None

    async def sync_once(self, partition_log: PartitionLog) -> bool:
        """Sync the log. Returns whether there was anything to sync. Raises KafkaStorageError."""
        if self._replica_log.closed is not None:
            return False  # Deleted: the files have been renamed.
        return await sync_log(partition_log)


async def sync_log(partition_log: PartitionLog, up_to: Offset | None = None) -> bool:
    """Sync everything below `up_to` (default: the end). Returns whether there was anything to sync.

    Raises KafkaStorageError. If the caller is cancelled, the sync continues in its thread: its
    files stay pinned until it ends, and its result is still recorded.
    """
    end_offset = partition_log.end_offset if up_to is None else up_to
    has_synced = False
    while (job := await _next_job(partition_log, up_to)) is not None:
        has_synced, up_to = True, end_offset
        running = start_in_sync_thread(job.run)
        running.add_done_callback(partial(_ended, partition_log, job))
        try:
            await asyncio.shield(running)
        except OSError as error:
            raise KafkaStorageError(f"{partition_log.partition}: {error}") from error
        if job.reaches_end or (
            job.end_offset >= end_offset and partition_log.durability.truncation_is_safe
        ):
            break
    return has_synced


async def _next_job(partition_log: PartitionLog, up_to: Offset | None) -> SyncJob | None:
    """The job has a slot, which `_ended` releases."""
    slots = partition_log.directory.files.sync_slots
    await slots.acquire()
    job = None
    try:
        job = partition_log.durability.sync_job(up_to)
    finally:
        if job is None:
            slots.release()
    return job


def _ended(partition_log: PartitionLog, job: SyncJob, running: "asyncio.Future[None]") -> None:
    partition_log.directory.files.sync_slots.release()
    durability = partition_log.durability
    error = None if running.cancelled() else running.exception()
    if isinstance(error, OSError):
        durability.sync_failed(job, error)
    elif error is not None or running.cancelled():
        durability.sync_abandoned(job)
    else:
        durability.synced(job)


def syncing(partition_log: PartitionLog) -> Steps[None]:
    """Sync after a change: the follower's next fetch acknowledges what is in the log."""
    end_offset, durability = partition_log.end_offset, partition_log.durability
    while (job := durability.sync_job(end_offset)) is not None:
        try:
            yield job.run
        except OSError as error:
            durability.sync_failed(job, error)
            raise KafkaStorageError(f"{partition_log.partition}: {error}") from error
        except BaseException:  # An unexpected error, or the generator is closed.
            durability.sync_abandoned(job)
            raise
        durability.synced(job)
