"""The common part of all session implementations: the state, and waiting for the store.

Invariant: an expired session stays expired; `lost` is set if and only if it is expired.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from suwi.env.tasks import wait_for_event
from suwi.metadata.store import Closed, SessionLost, SessionState, Unavailable

log = logging.getLogger(__name__)

_RETRY_S = 1.0
"""Interval of attempts without a notification: notifications are not relied on."""

T = TypeVar("T")
Subscribe = Callable[[Callable[[], None]], Callable[[], None]]


class Subscribers:
    """The callbacks of a store."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._subscribed = 0

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._subscribed += 1
        number = self._subscribed
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    def _notify(self) -> None:
        for callback in list(self._callbacks.values()):
            callback()


class SessionBase:
    def __init__(self, session_id: int, subscribe: Subscribe) -> None:
        self.id = session_id
        self._subscribe = subscribe
        self.state = SessionState.CONNECTED
        self.lost = asyncio.Event()

    def move_to(self, state: SessionState) -> None:
        """Called by the store on the event loop, before it notifies the subscribers."""
        if self.state is SessionState.EXPIRED:
            return
        self.state = state
        if state is SessionState.EXPIRED:
            self.lost.set()

    async def _until(self, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat the attempt until it returns a value; wait for a change in between."""
        woken = asyncio.Event()
        last_reason = ""
        unsubscribe = self._subscribe(woken.set)
        try:
            while True:
                woken.clear()
                if self.lost.is_set():
                    raise SessionLost(self.id)
                try:
                    value = await attempt()
                except Closed:
                    raise
                except Unavailable as error:
                    value = None
                    if str(error) != last_reason:
                        last_reason = str(error)
                        log.warning(
                            "metadata store unavailable, retrying", extra={"reason": last_reason}
                        )
                if value is not None:
                    return value
                await wait_for_event(woken, _RETRY_S)
        finally:
            unsubscribe()
