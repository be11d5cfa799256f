"""The thread that runs the event loop of a test cluster."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from suwi.testing.loop import ClusterLoop

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self.loop = ClusterLoop()
        # The test may block its own thread, or run another event loop in it.
        self._thread = threading.Thread(  # noqa: TID251
            target=self._run, name="suwi-cluster", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block until it is done."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def on_loop(thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on that thread's loop, and await it on the caller's loop."""
    return await asyncio.wrap_future(thread.submit(work))
