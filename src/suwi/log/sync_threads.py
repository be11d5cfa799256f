"""Threads for syncs: a slow disk must not delay reads and lookups in the default executor."""

import asyncio
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - only given to run_in_executor
from typing import Any

from suwi.log.sliced_work import Job

_THREADS = 8
# One per process, like the default executor: it starts no threads before its first use.
_executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="suwi-sync")


def start_in_sync_thread(job: Job) -> "asyncio.Future[Any]":
    """Run a job that syncs, in the background."""
    return asyncio.get_running_loop().run_in_executor(_executor, job)


async def in_sync_thread(job: Job) -> Any:
    """Run a job that syncs, as `until_ended`."""
    return await until_ended(start_in_sync_thread(job))


async def until_ended(running: "asyncio.Future[Any]") -> Any:
    """The result of a job. Returns only when the job has ended, even if cancelled: it has open
    files that must not be closed."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # Marks it as retrieved.
        raise
