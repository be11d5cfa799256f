"""Limits the bytes per second that background work on logs reads and writes."""

import asyncio
from collections.abc import Callable

_WAIT_S_MIN = 0.001
_WAIT_S_MAX = 1.0  # Then the limit is read again: it can be changed at run time.


class IoThrottle:
    def __init__(self, bytes_per_s_max: Callable[[], float], stopping: asyncio.Event) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._seen_bytes = 0
        self._excess_bytes = 0.0
        self._at_s = self._loop.time()

    async def wait_or_stop(self, io_bytes: int) -> bool:
        """Wait until the limit allows `io_bytes` in total; True if the broker is stopping."""
        self._excess_bytes += io_bytes - self._seen_bytes
        self._seen_bytes = io_bytes
        while not self._stopping.is_set():
            bytes_per_s = self._bytes_per_s_max()
            now_s = self._loop.time()
            self._excess_bytes = max(self._excess_bytes - (now_s - self._at_s) * bytes_per_s, 0.0)
            self._at_s = now_s
            wait_s = self._excess_bytes / bytes_per_s
            if wait_s < _WAIT_S_MIN:
                return False
            try:
                async with asyncio.timeout(min(wait_s, _WAIT_S_MAX)):
                    await self._stopping.wait()
            except TimeoutError:
                pass
        return True
