"""The store of the simulation: deterministic, in memory, and as nasty as the contract allows.

One `MemoryStore` is the ensemble; each broker gets a `view`. Every operation travels to the store
and back with the view's latency, so that a cut in between loses the request or the answer. The
view's `faults` make answers unknown, reads stale, notices late; `disconnect`, `suspend`,
`reconnect`, `expire` and `kill` are the events of a session's life. All chance comes from the
`Random` given, all time from the event loop. What a view does belongs to the context it was made
in, what the store does to none: neither ends with another broker's process.
Invariant: a read shows the state after some transaction, not before the view's last one, except
that a new session may start further back.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from suwi.env.random import Random
from suwi.metadata.ledger import Event, Ledger
from suwi.metadata.local import Committed, Decide, LocalSession, LocalView
from suwi.metadata.store import Closed, Conflict, SessionState, Unavailable, Unknown

_LOG_TRANSACTIONS = 64
"""How far back a read can lag."""
_CHANCE_UNIT = 1_000_000

T = TypeVar("T")


class Mishap(enum.Enum):
    UNKNOWN_APPLIED = "the write is applied, the answer lost"
    UNKNOWN_DROPPED = "the write is lost on its way"


@dataclass(slots=True)
class Faults:
    """Switches of one view; all off at first."""

    latency_s: tuple[float, float] = (0.0, 0.0)
    """Time of each way, to the store and back: least and most."""
    notice_delay_s: tuple[float, float] = (0.0, 0.0)
    """Time until a callback; all changes up to then share it."""
    read_lag_max: int = 0
    """How many transactions a read may be behind."""
    new_session_lag_max: int = 0
    """How many transactions behind the store a new session may begin."""
    unknown_applied_chance: float = 0.0
    unknown_dropped_chance: float = 0.0


Observer: TypeAlias = Callable[["MemoryView | None", tuple[Event, ...]], None]
"""Told of each transaction who made it, None for the store itself, and what it did."""


class MemoryStore:
    def __init__(self, random: Random, *, session_timeout_s: float = 6.0) -> None:
        self.session_timeout_s = session_timeout_s
        self.random = random
        self.ledger = Ledger()
        """The truth, for checkers; brokers go through a view."""
        self.observers: list[Observer] = []
        self._base = Ledger()
        self._log: deque[tuple[Event, ...]] = deque()
        self._views: list[MemoryView] = []

    def view(self) -> "MemoryView":
        """A connection for one broker."""
        view = MemoryView(self)
        self._views.append(view)
        return view

    def commit(self, events: tuple[Event, ...], author: "MemoryView | None" = None) -> None:
        if not events:
            return
        self.ledger.replay(events)
        for observer in self.observers:
            observer(author, events)
        self._log.append(events)
        if len(self._log) > _LOG_TRANSACTIONS:
            self._base.replay(self._log.popleft())
        for view in self._views:
            view.schedule_notice()

    def end_session(self, session_id: int) -> None:
        events = self.ledger.decide_end(session_id)
        assert isinstance(events, tuple)
        self.commit(events)

    def at(self, transaction: int) -> Ledger:
        """The ledger as it was after a transaction, or the oldest still known."""
        if transaction >= self.ledger.transaction:
            return self.ledger
        ledger = self._base.copy()
        for events in self._log:
            if ledger.transaction >= transaction:
                break
            ledger.replay(events)
        return ledger

    def forget(self, view: "MemoryView") -> None:
        if view in self._views:
            self._views.remove(view)


class MemoryView(LocalView):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.faults = Faults()
        self._store = store
        self._plan: deque[Mishap] = deque()
        self._seen = 0
        self._connection = 1
        """Counts connections; 0 while there is none."""
        self._connections = 1
        self._closed = False
        self._context = copy_context()
        self._notice: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def plan(self, *mishaps: Mishap) -> None:
        """What happens to the next writes (of any kind), before chance gets its turn."""
        self._plan.extend(mishaps)

    @property
    def connected(self) -> bool:
        return self._connection != 0

    def disconnect(self) -> None:
        """Cut the view off. The store ends its session after the timeout; it cannot know."""
        if not self.connected:
            return
        self.suspend()
        if self._session is not None:
            self._session.move_to(SessionState.DISCONNECTED)
        self.schedule_notice(even_if_disconnected=True)

    def suspend(self) -> None:
        """As `disconnect`, but unnoticed here: a process that stands still learns it later."""
        if not self.connected:
            return
        self._connection = 0
        if self._session is not None and not self._session.lost.is_set():
            self._expiry = asyncio.get_running_loop().call_later(
                self._store.session_timeout_s,
                self._store.end_session,
                self._session.id,
                context=Context(),
            )

    def reconnect(self) -> None:
        """Let the view back in. A session that has ended is known as lost only now."""
        if self.connected or self._closed:
            return
        self._connections += 1
        self._connection = self._connections
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._session is not None:
            alive = self._session.id in self._store.ledger.sessions
            self._session.move_to(SessionState.CONNECTED if alive else SessionState.EXPIRED)
        self.schedule_notice()

    def expire(self) -> None:
        """The store ends the session. A view that is cut off learns it when it reconnects."""
        if self._session is None:
            return
        self._store.end_session(self._session.id)
        if self.connected:
            self._session.move_to(SessionState.EXPIRED)
            self.schedule_notice()

    def kill(self) -> None:
        """The broker's process dies: nothing more passes here; its session times out."""
        self.disconnect()
        self._stop()

    async def close(self) -> None:
        if self._closed:
            return
        if self._session is not None and self.connected:
            self._store.end_session(self._session.id)
            self._session.move_to(SessionState.EXPIRED)
        self._stop()

    async def open_session(self) -> LocalSession:
        session = await super().open_session()
        if self.faults.new_session_lag_max:
            lag = self._store.random.below(self.faults.new_session_lag_max + 1)
            self._seen = max(0, self._store.ledger.transaction - lag)
            self.schedule_notice()
        return session

    async def sync(self) -> None:
        await self._trip(self._catch_up)

    async def _look(self, look: Callable[[Ledger], T]) -> T:
        def read() -> T:
            lag = self._store.random.below(self.faults.read_lag_max + 1)
            self._seen = max(self._seen, self._store.ledger.transaction - lag)
            return look(self._store.at(self._seen))

        return await self._trip(read)

    async def _commit(self, decide: Decide) -> Committed | Conflict | Unknown:
        def commit() -> Committed | Conflict:
            decision = decide(self._store.ledger)
            if isinstance(decision, Conflict):
                return decision
            self._store.commit(decision, self)
            return Committed(decision, self._store.ledger.sequence)

        self._check_connected()
        mishap = self._next_mishap()
        if mishap is Mishap.UNKNOWN_DROPPED:
            await self._travel()
            await self._travel()
            return Unknown()
        try:
            outcome = await self._trip(commit)
        except Closed:
            raise
        except Unavailable:
            return Unknown()
        applied = isinstance(outcome, Committed) and outcome.events
        return Unknown() if mishap and applied else outcome

    async def _trip(self, act: Callable[[], T]) -> T:
        """Do something at the store. Where the connection breaks on the way, raise."""
        self._check_connected()
        connection = self._connection
        await self._travel()
        self._check_connected(connection)
        try:
            result = act()
        finally:
            await self._travel()
            self._check_connected(connection)
        return result

    async def _travel(self) -> None:
        least, most = self.faults.latency_s
        await asyncio.sleep(self._store.random.uniform(least, most) if most else 0)

    def _check_connected(self, connection: int | None = None) -> None:
        if self._closed:
            raise Closed("closed")
        if not self.connected or connection not in (None, self._connection):
            raise Unavailable("disconnected")

    def _next_mishap(self) -> Mishap | None:
        if self._plan:
            return self._plan.popleft()
        faults = self.faults
        if not (faults.unknown_applied_chance or faults.unknown_dropped_chance):
            return None
        draw = self._store.random.below(_CHANCE_UNIT) / _CHANCE_UNIT
        if draw < faults.unknown_applied_chance:
            return Mishap.UNKNOWN_APPLIED
        if draw < faults.unknown_applied_chance + faults.unknown_dropped_chance:
            return Mishap.UNKNOWN_DROPPED
        return None

    def schedule_notice(self, *, even_if_disconnected: bool = False) -> None:
        if self._closed or self._notice is not None:
            return
        if not self.connected and not even_if_disconnected:
            return  # Reconnecting gives one.
        least, most = self.faults.notice_delay_s
        delay_s = self._store.random.uniform(least, most) if most else 0.0
        self._notice = asyncio.get_running_loop().call_later(
            delay_s, self._deliver_notice, context=self._context
        )

    def _deliver_notice(self) -> None:
        self._notice = None
        if self.connected:
            self._catch_up()
        self._notify()

    def _catch_up(self) -> None:
        self._seen = self._store.ledger.transaction

    def _stop(self) -> None:
        self._closed = True
        self._connection = 0
        self._callbacks.clear()
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
        self._store.forget(self)
