"""Deletes files and directories after a delay, in threads.

The delay is for readers that still have them open. Files left over when the broker stops are found
by their names at the next start.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from suwi.env import Disk
from suwi.env.tasks import Tasks

log = logging.getLogger(__name__)


class DeferredDeletion:
    def __init__(self, disk: Disk, tasks: Tasks) -> None:
        self._disk = disk
        self._tasks = tasks
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    def delete_files(self, paths: list[str], delay_s: float) -> None:
        self._start(lambda: self._delete_files(paths), delay_s)

    def delete_dir(self, path: str, delay_s: float) -> None:
        self._start(lambda: self._disk.remove_tree(path), delay_s)

    async def stop(self) -> None:
        """Wait for the running deletions; start no others."""
        self._stopping.set()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, delete: Callable[[], None], delay_s: float) -> None:
        async def work() -> None:
            try:
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
                return
            except TimeoutError:
                pass
            try:
                await asyncio.get_running_loop().run_in_executor(None, delete)
            except OSError as error:
                log.warning("deletion failed", extra={"reason": str(error)})

        task = self._tasks.start(work, name="deferred deletion", on_failure=lambda _: None)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _delete_files(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # Their directory may be deleted, too.
                self._disk.remove(path)
