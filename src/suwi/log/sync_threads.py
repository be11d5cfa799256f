"""Threads for what waits for the disk: a slow one must not keep reads and look-ups waiting."""

import asyncio
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - only given to run_in_executor
from typing import Any

from suwi.log.steps import Job

_THREADS = 8
# One for the process, as the default executor is: it has no threads before it is used.
_executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="suwi-sync")


def start_in_sync_thread(job: Job) -> "asyncio.Future[Any]":
    """Run a job that syncs, whether or not somebody waits for it."""
    return asyncio.get_running_loop().run_in_executor(_executor, job)


async def in_sync_thread(job: Job) -> Any:
    """Run a job that syncs. Ends only when the job has ended, even if cancelled: it has files open,
    and nobody may close them under it."""
    running = start_in_sync_thread(job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # Whatever it is, nobody waits for it any more.
        raise
