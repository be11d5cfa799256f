"""Ends the store's session of an event loop that hangs.

A client whose own thread keeps the session alive would hold on to leadership that its broker can
no longer exercise. The loop beats while it runs; a thread that hears no beat for the session's
time-out ends the session, and begins another once the loop is back.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_BEATS_PER_TIMEOUT = 4


class LoopGuard:
    def __init__(
        self, timeout_s: float, end_session: Callable[[], None], begin_session: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._end_session = end_session
        self._begin_session = begin_session
        self._beaten = threading.Event()
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # Not a job for an executor: it must run exactly when the loop does not.
        threading.Thread(  # noqa: TID251
            target=self._watch, name="suwi-loop-guard", daemon=True
        ).start()
        self._beat()

    def stop(self) -> None:
        self._stopped = True
        self._beaten.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beaten.set()
        delay_s = self._timeout_s / _BEATS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._beat)

    def _watch(self) -> None:
        while not self._stopped:
            if self._beaten.wait(self._timeout_s):
                self._beaten.clear()
                continue
            log.error("event loop hangs: session ended", extra={"timeout_s": self._timeout_s})
            self._end_session()
            self._beaten.wait()
            if not self._stopped:
                self._begin_session()
