"""Failed authentications of a listener: counted by mechanism and logged, at most one line a second
because anybody can cause them.
"""

import logging
import math
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

_LINE_PERIOD_S: Final = 1.0
_USER_CHARACTERS_MAX: Final = 64


class FailedAuthentications:
    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._by_mechanism: dict[str, int] = {}
        self._line_at_s = -math.inf
        self._suppressed = 0

    @property
    def by_mechanism(self) -> Mapping[str, int]:
        return self._by_mechanism

    def add(self, mechanism: str, reason: str, peer: str, user: str, now_s: float) -> None:
        """`mechanism` is one that the broker supports, `user` the name that was sent, or empty."""
        self._by_mechanism[mechanism] = self._by_mechanism.get(mechanism, 0) + 1
        if now_s - self._line_at_s < _LINE_PERIOD_S:
            self._suppressed += 1
            return
        facts: dict[str, object] = {
            "listener": self._listener,
            "mechanism": mechanism,
            "peer": peer,
            "reason": reason,
        }
        if user:
            facts["user"] = _shown(user)
        if self._suppressed:
            facts["suppressed"] = self._suppressed  # failures not logged since the last line
        self._line_at_s, self._suppressed = now_s, 0
        log.info("authentication failed", extra=facts)


def _shown(user: str) -> str:
    """An untrusted name, escaped and shortened for the log."""
    escaped = repr(user[: _USER_CHARACTERS_MAX + 1])[1:-1]
    return escaped if len(escaped) <= _USER_CHARACTERS_MAX else f"{escaped[:_USER_CHARACTERS_MAX]}…"
