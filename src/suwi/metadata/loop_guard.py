"""Ends the session with the metadata store when the event loop hangs.

A store client with its own thread keeps the session alive even if the event loop hangs, and with it
leaderships that the broker cannot serve. A timer on the loop signals a thread; without a signal for
the session timeout the thread ends the session, and starts another when the loop runs again.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_SIGNALS_PER_TIMEOUT = 4


class LoopGuard:
    def __init__(
        self, timeout_s: float, end_session: Callable[[], None], begin_session: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._end_session = end_session
        self._begin_session = begin_session
        self._signalled = threading.Event()
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # A thread of its own, not an executor: it must run when the loop does not.
        threading.Thread(  # noqa: TID251
            target=self._watch, name="suwi-loop-guard", daemon=True
        ).start()
        self._signal()

    def stop(self) -> None:
        self._stopped = True
        self._signalled.set()
        if self._timer is not None:
            self._timer.cancel()

    def _signal(self) -> None:
        self._signalled.set()
        delay_s = self._timeout_s / _SIGNALS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._signal)

    def _watch(self) -> None:
        while not self._stopped:
            if self._signalled.wait(self._timeout_s):
                self._signalled.clear()
                continue
            log.error("event loop hangs, session ended", extra={"timeout_s": self._timeout_s})
            self._end_session()
            self._signalled.wait()
            if not self._stopped:
                self._begin_session()
