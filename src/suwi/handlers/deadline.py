"""The time that a client gives the controller for a change (`timeout.ms` of its request)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from suwi.model.errors import RequestTimedOut
from suwi.net.dispatch import Request

# As Kafka's clients by default; for those that ask not to wait, too: nothing is decided at once.
_TIMEOUT_S: Final = 30.0


def deadline_of(request: Request) -> float:
    """On the clock of the event loop."""
    timeout_s = request.message.timeout.total_seconds()
    return asyncio.get_running_loop().time() + (timeout_s if timeout_s > 0 else _TIMEOUT_S)


@asynccontextmanager
async def in_time(deadline_s: float) -> AsyncIterator[None]:
    """Raises RequestTimedOut; what was asked of the controller may still be done, but nothing is
    begun after the deadline."""
    if asyncio.get_running_loop().time() >= deadline_s:
        raise RequestTimedOut("not begun in time")
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError:
        raise RequestTimedOut("not done in time; it may still be done later") from None
