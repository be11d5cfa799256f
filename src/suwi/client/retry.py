"""Exponential backoff with jitter between attempts, up to a timeout."""

import asyncio

from suwi.client.settings import ClientSettings
from suwi.env import Random


class Retry:
    """The attempts of one call. Use: `except … as error: await retry.pause_or_raise(error)`."""

    def __init__(
        self, settings: ClientSettings, random: Random, *, retry_timeout_s: float | None = None
    ) -> None:
        self._settings = settings
        self._random = random
        self._pause_s = settings.retry_pause_s_min
        retry_timeout_s = settings.retry_timeout_s if retry_timeout_s is None else retry_timeout_s
        self._end_s = asyncio.get_running_loop().time() + retry_timeout_s

    async def pause_or_raise(self, error: Exception) -> None:
        """Wait before the next attempt. Raises the error if there is no time for one."""
        await asyncio.sleep(self.next_pause_s(error))

    def next_pause_s(self, error: Exception) -> float:
        """The pause before the next attempt. Raises the error if there is no time for one."""
        # Jitter: clients that lost the same broker must not reconnect all at once.
        pause_s = self._pause_s * self._random.uniform(0.8, 1.2)
        if asyncio.get_running_loop().time() + pause_s >= self._end_s:
            raise error
        self._pause_s = min(2 * self._pause_s, self._settings.retry_pause_s_max)
        return pause_s
