"""Work on logs in threads: syncs have their own, and background work is limited.

A slow disk must not delay reads and lookups in the default executor, so syncs do not run there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - only given to run_in_executor
from typing import Any

from suwi.env.tasks import wait_for_event
from suwi.log.sliced_work import Job, Steps

_SYNC_THREADS = 8
# One per process, like the default executor: it starts no threads before its first use.
_executor = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="suwi-sync")
_WAIT_S_MIN = 0.001
_WAIT_S_MAX = 1.0  # Then the limit is read again: it can be changed at run time.


def start_in_sync_thread(job: Job) -> "asyncio.Future[Any]":
    """Run a job that syncs, in the background."""
    return asyncio.get_running_loop().run_in_executor(_executor, job)


async def in_sync_thread(job: Job) -> Any:
    """Run a job that syncs, as `_until_ended`."""
    return await _until_ended(start_in_sync_thread(job))


async def in_thread(job: Job) -> Any:
    """Run a job that does not sync, as `_until_ended`."""
    return await _until_ended(asyncio.get_running_loop().run_in_executor(None, job))


async def _until_ended(running: "asyncio.Future[Any]") -> Any:
    """The result of a job. Returns only when the job has ended, even if cancelled: it has open
    files that must not be closed."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # Marks it as retrieved.
        raise


async def run_in_threads(steps: Steps[None], may_go_on: Callable[[], Awaitable[bool]]) -> bool:
    """Run the jobs of long work in a thread, one after another. Returns False if `may_go_on`, which
    is called after each, did so."""
    try:
        job = next(steps)
        while True:
            try:
                result = await in_thread(job)
            except BaseException as error:
                job = steps.throw(error)
                continue
            if not await may_go_on():
                return False
            job = steps.send(result)
    except StopIteration:
        return True
    finally:
        steps.close()


class IoThrottle:
    """Limits the bytes per second that background work reads and writes."""

    def __init__(self, bytes_per_s_max: Callable[[], float], stopping: asyncio.Event) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._seen_bytes = 0
        self._excess_bytes = 0.0
        self._at_s = self._loop.time()

    async def allows(self, io_bytes: int) -> bool:
        """Wait until the limit allows `io_bytes` in total; False if the broker is stopping."""
        self._excess_bytes += io_bytes - self._seen_bytes
        self._seen_bytes = io_bytes
        while not self._stopping.is_set():
            bytes_per_s = self._bytes_per_s_max()
            now_s = self._loop.time()
            self._excess_bytes = max(self._excess_bytes - (now_s - self._at_s) * bytes_per_s, 0.0)
            self._at_s = now_s
            wait_s = self._excess_bytes / bytes_per_s
            if wait_s < _WAIT_S_MIN:
                return True
            await wait_for_event(self._stopping, min(wait_s, _WAIT_S_MAX))
        return False
