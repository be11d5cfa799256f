"""Bringing a log to disk in a thread: the one way from a `SyncJob` to what became of it."""

import asyncio
from functools import partial

from suwi.log.partition_log import PartitionLog
from suwi.log.sync_job import SyncJob
from suwi.log.sync_threads import start_in_sync_thread
from suwi.model.errors import KafkaStorageError
from suwi.model.ids import Offset


async def sync_log(partition_log: PartitionLog, up_to: Offset | None = None) -> bool:
    """Sync everything below `up_to` (the end); whether there was anything to sync.

    Raises KafkaStorageError. Whoever is cancelled here leaves a sync that goes on in its thread: it
    keeps its files pinned until it ends, and what it reached counts.
    """
    job = partition_log.sync_job(up_to)
    if job is None:
        return False
    running = start_in_sync_thread(job.run)
    running.add_done_callback(partial(_ended, partition_log, job))
    try:
        await asyncio.shield(running)
    except OSError as error:
        raise KafkaStorageError(f"{partition_log.partition}: {error}") from error
    return True


def _ended(partition_log: PartitionLog, job: SyncJob, running: "asyncio.Future[None]") -> None:
    error = None if running.cancelled() else running.exception()
    if isinstance(error, OSError):
        partition_log.sync_failed(job, error)
    elif error is not None or running.cancelled():
        partition_log.sync_abandoned(job)
    else:
        partition_log.synced(job)
