"""A connection that a quota has muted starts no request until its time is over, and then goes on.

Whatever else happens to it meanwhile: another throttle, a pause, a change of leaders, answers that
become ready. Looked at every tenth of a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from suwi.net.connection import Connection
from suwi.net.dispatch import Dispatcher
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster
from suwi.sim.incarnation import Incarnation, current

_LOOK_S = 0.1
_GOES_ON_WITHIN_S = 0.3


@dataclass(slots=True, eq=False)
class _Muted:
    process: Incarnation | None
    ends_s: float
    due_since_s: float | None = None
    """Since when it must go on."""


class MuteWatch:
    def __init__(self, cluster: SimCluster) -> None:
        self._loop = cluster.simulation.loop
        self._muted: dict[Connection, _Muted] = {}
        self._next_look_s = 0.0
        self._wrong: str | None = None
        cluster.simulation.add_checker(self._after_step)

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """While it is entered, muted connections are known."""
        mute, dispatch = Connection.mute, Dispatcher.__call__
        load_first = Dispatcher._load_first
        loading: set[Connection] = set()
        """Those with a request that has begun, and is dispatched again when its schema is there."""

        def noted(connection: Connection, throttle_ms: int) -> None:
            ends_s = self._loop.time() + throttle_ms / 1000
            known = self._muted.setdefault(connection, _Muted(current.get(), ends_s))
            known.ends_s = max(known.ends_s, ends_s)
            mute(connection, throttle_ms)

        def dispatched(dispatcher: Dispatcher, connection: Connection, frame: memoryview) -> Any:
            known = self._muted.get(connection)
            has_begun = connection in loading
            loading.discard(connection)
            if known is not None and self._loop.time() < known.ends_s and not has_begun:
                self._wrong = f"a request of {connection} begins while it is muted"
            return dispatch(dispatcher, connection, frame)

        def loads(dispatcher: Dispatcher, connection: Connection, *request: Any) -> Any:
            loading.add(connection)
            return load_first(dispatcher, connection, *request)

        with (
            patch.object(Connection, "mute", noted),
            patch.object(Dispatcher, "__call__", dispatched),
            patch.object(Dispatcher, "_load_first", loads),
        ):
            yield

    def _after_step(self) -> None:
        if self._wrong is not None:
            raise Broken(self._wrong)
        now_s = self._loop.time()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            for connection, muted in list(self._muted.items()):
                self._look_at(connection, muted, now_s)

    def _look_at(self, connection: Connection, muted: _Muted, now_s: float) -> None:
        process = muted.process
        if process is None or process.revoked or connection._closing:
            del self._muted[connection]
        elif process.frozen or process.stalled_until > now_s or now_s < muted.ends_s:
            muted.due_since_s = None
        elif not _is_stuck(connection):
            del self._muted[connection]
        elif muted.due_since_s is None:
            muted.due_since_s = now_s
        elif now_s - muted.due_since_s > _GOES_ON_WITHIN_S:
            raise Broken(f"{connection} of {process.name} stays muted after {muted.ends_s:.3f}")


def _is_stuck(connection: Connection) -> bool:
    """Muted, or without a reason to wait."""
    if connection._unmuting is not None:
        return True
    return connection._blocked and not connection._is_blocked()
