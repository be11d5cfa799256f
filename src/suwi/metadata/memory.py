"""The metadata store of the simulation: deterministic, in memory, with injected faults.

One `MemoryStore` is the ensemble; each broker gets a `view`. Every operation takes the view's
latency in each direction, so that a disconnect in between loses the request or the response. The
view's `faults` make outcomes unknown, reads stale and notifications late, always within the store's
contract; `disconnect`, `suspend`, `reconnect`, `expire` and `kill` are the events of a session.
Randomness comes from the given `Random`, time from the event loop. Callbacks of a view run in the
context in which the view was created, those of the store in an empty one: stopping one broker does
not stop another's.
Invariant: a read shows the state after some transaction, and never one before that of the view's
last read, except that a new session may start further back.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from suwi.env import Random
from suwi.metadata.ledger import Event, Ledger
from suwi.metadata.local import Committed, Decide, LocalSession, LocalView
from suwi.metadata.store import Closed, Conflict, SessionState, Unavailable, Unknown

_LOG_TRANSACTIONS = 64
"""How far back a read can lag."""
_CHANCE_UNIT = 1_000_000

T = TypeVar("T")


class Mishap(enum.Enum):
    UNKNOWN_APPLIED = "the write is applied, the response is lost"
    UNKNOWN_DROPPED = "the write is lost"


@dataclass(slots=True)
class Faults:
    """Faults of one view; all off by default."""

    latency_s: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum latency of each direction."""
    notice_delay_s: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum delay of a callback; one callback covers all changes until then."""
    read_lag_max: int = 0
    """By how many transactions a read may be stale."""
    new_session_lag_max: int = 0
    """By how many transactions the first read of a new session may be stale."""
    unknown_applied_chance: float = 0.0
    unknown_dropped_chance: float = 0.0


Observer: TypeAlias = Callable[["MemoryView | None", tuple[Event, ...]], None]
"""Called with the author (None: the store itself) and the events of each transaction."""


class MemoryStore:
    def __init__(self, random: Random, *, session_timeout_s: float = 6.0) -> None:
        self.session_timeout_s = session_timeout_s
        self.random = random
        self.ledger = Ledger()
        """The actual state, for checkers; brokers use a view."""
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
        """The ledger after a transaction, or the oldest one that can be reconstructed."""
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
        """The number of the current connection; 0 while disconnected."""
        self._connections = 1
        self._disconnected_s = 0.0
        self._closed = False
        self._context = copy_context()
        self._notice: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def plan(self, *mishaps: Mishap) -> None:
        """Mishaps of the next commits, used up before any random ones."""
        self._plan.extend(mishaps)

    @property
    def connected(self) -> bool:
        return self._connection != 0

    @property
    def session_timeout_s(self) -> float | None:
        return self._store.session_timeout_s

    @property
    def is_overdue(self) -> bool:
        if self.connected:
            return False
        silent_s = asyncio.get_running_loop().time() - self._disconnected_s
        return silent_s >= self._store.session_timeout_s

    def disconnect(self) -> None:
        """Disconnect the view. The store ends its session after the timeout."""
        if not self.connected:
            return
        self.suspend()
        if self._session is not None:
            self._session.move_to(SessionState.DISCONNECTED)
        self.schedule_notice(even_if_disconnected=True)

    def suspend(self) -> None:
        """Like `disconnect`, but the view does not notice it, as in a suspended process."""
        if not self.connected:
            return
        self._connection = 0
        self._disconnected_s = asyncio.get_running_loop().time()
        self._begin_expiry()

    def _begin_expiry(self) -> None:
        if self._session is not None and not self._session.lost.is_set():
            self._expiry = asyncio.get_running_loop().call_later(
                self._store.session_timeout_s,
                self._store.end_session,
                self._session.id,
                context=Context(),
            )

    def keep_session(self) -> None:
        """Of a disconnected view: the store does not end its session."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def stop_keeping_session(self) -> None:
        """After `keep_session`: the store ends the session of a view that stays disconnected."""
        if not self.connected and self._expiry is None:
            self._begin_expiry()

    def reconnect(self) -> None:
        """Reconnect the view. It notices only now if its session has ended."""
        if self.connected or self._closed:
            return
        self._connections += 1
        self._connection = self._connections
        self.keep_session()
        if self._session is not None:
            alive = self._session.id in self._store.ledger.sessions
            self._session.move_to(SessionState.CONNECTED if alive else SessionState.EXPIRED)
        self.schedule_notice()

    def expire(self) -> None:
        """End the session. A disconnected view notices it when it reconnects."""
        if self._session is None:
            return
        self._store.end_session(self._session.id)
        if self.connected:
            self._session.move_to(SessionState.EXPIRED)
            self.schedule_notice()

    def kill(self) -> None:
        """Simulate the end of the broker's process: the view is closed, its session times out."""
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
        await self._round_trip(self._catch_up)

    async def _look(self, look: Callable[[Ledger], T]) -> T:
        def read() -> T:
            lag = self._store.random.below(self.faults.read_lag_max + 1)
            self._seen = max(self._seen, self._store.ledger.transaction - lag)
            return look(self._store.at(self._seen))

        return await self._round_trip(read)

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
            await self._delay()
            await self._delay()
            return Unknown()
        try:
            outcome = await self._round_trip(commit)
        except Closed:
            raise
        except Unavailable:
            return Unknown()
        applied = isinstance(outcome, Committed) and outcome.events
        return Unknown() if mishap and applied else outcome

    async def _round_trip(self, act: Callable[[], T]) -> T:
        """Call `act` at the store. Raises `Unavailable` if the connection breaks meanwhile."""
        self._check_connected()
        connection = self._connection
        await self._delay()
        self._check_connected(connection)
        try:
            result = act()
        finally:
            await self._delay()
            self._check_connected(connection)
        return result

    async def _delay(self) -> None:
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
        drawn = self._store.random.below(_CHANCE_UNIT) / _CHANCE_UNIT
        if drawn < faults.unknown_applied_chance:
            return Mishap.UNKNOWN_APPLIED
        if drawn < faults.unknown_applied_chance + faults.unknown_dropped_chance:
            return Mishap.UNKNOWN_DROPPED
        return None

    def schedule_notice(self, *, even_if_disconnected: bool = False) -> None:
        if self._closed or self._notice is not None:
            return
        if not self.connected and not even_if_disconnected:
            return  # `reconnect` schedules one.
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
