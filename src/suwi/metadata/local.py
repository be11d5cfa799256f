"""One broker's connection to a store in its own process: `MetadataStore` on top of a `Ledger`.

A subclass implements `_look`, which reads the ledger, and `_commit`, which submits a decision, with
faults (memory) or durability (embedded). The semantics of the operations are here, once for both.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from suwi.metadata.ledger import Decision, Elected, Event, Ledger, Registered, SessionOpened
from suwi.metadata.store import (
    Applied,
    Change,
    Conflict,
    Controller,
    Entry,
    Gap,
    Operation,
    ReadableCopy,
    Registration,
    SessionState,
    Snapshot,
    Unknown,
    WriteResult,
    check_key,
    check_write,
)
from suwi.metadata.store_session import SessionBase, Subscribers
from suwi.model.ids import NodeId

T = TypeVar("T")
Decide = Callable[[Ledger], Decision]


class Committed(NamedTuple):
    events: tuple[Event, ...]
    sequence: int


class LocalView(Subscribers, abc.ABC):
    is_shared = False
    readable_copy: ReadableCopy | None = None

    def __init__(self) -> None:
        super().__init__()
        self._session: LocalSession | None = None

    @property
    def full_errors(self) -> int:
        return 0

    @property
    def session_timeout_s(self) -> float | None:
        return None

    @property
    def is_overdue(self) -> bool:
        """Whether the view has been disconnected for the session timeout."""
        return False

    @abc.abstractmethod
    async def _look(self, look: Callable[[Ledger], T]) -> T:
        """Read the ledger, possibly a stale one."""

    @abc.abstractmethod
    async def _commit(self, decide: Decide) -> Committed | Conflict | Unknown:
        """Decide on the latest ledger and commit the events. Errors of `decide` are raised."""

    @abc.abstractmethod
    async def sync(self) -> None: ...

    async def settle(self, decide: Decide) -> Committed | Conflict:
        """Commit an idempotent decision; repeats it until the outcome is known."""
        while True:
            outcome = await self._commit(decide)
            if not isinstance(outcome, Unknown):
                return outcome
            await self.sync()

    async def read(self, key: str) -> Entry | None:
        return await self._look(lambda ledger: ledger.entries.get(key))

    async def read_all(self, prefix: str = "") -> Snapshot:
        def look(ledger: Ledger) -> Snapshot:
            entries = {key: e for key, e in ledger.entries.items() if key.startswith(prefix)}
            return Snapshot(entries, ledger.sequence)

        return await self._look(look)

    async def write(
        self, operations: Sequence[Operation], *, controller_epoch: int | None = None
    ) -> WriteResult:
        check_write(operations)
        operations = tuple(operations)
        outcome = await self._commit(
            lambda ledger: ledger.decide_write(operations, controller_epoch)
        )
        return Applied(outcome.sequence) if isinstance(outcome, Committed) else outcome

    async def changes_after(self, sequence: int) -> list[Change] | Gap:
        return await self._look(lambda ledger: ledger.changes_after(sequence))

    async def registrations(self, prefix: str = "") -> Mapping[str, Registration]:
        return await self._look(
            lambda ledger: {
                key: held for key, held in ledger.registrations.items() if key.startswith(prefix)
            }
        )

    async def deregister(self, key: str, epoch: int) -> None:
        await self.settle(lambda ledger: ledger.decide_deregister(key, epoch))

    async def current_controller(self) -> Controller | None:
        return await self._look(lambda ledger: ledger.controller)

    async def depose(self, controller_epoch: int) -> None:
        await self.settle(lambda ledger: ledger.decide_depose(controller_epoch))

    async def open_session(self) -> "LocalSession":
        assert self._session is None or self._session.lost.is_set(), "one session at a time"
        # After an Unknown outcome a session may remain open; it has no registrations.
        outcome = await self.settle(lambda ledger: ledger.decide_open())
        assert isinstance(outcome, Committed)
        (opened,) = outcome.events
        assert isinstance(opened, SessionOpened)
        self._session = LocalSession(opened.session_id, self)
        return self._session


class LocalSession(SessionBase):
    def __init__(self, session_id: int, view: LocalView) -> None:
        super().__init__(session_id, view.subscribe)
        self._view = view

    @property
    def timeout_s(self) -> float | None:
        return self._view.session_timeout_s

    @property
    def is_overdue(self) -> bool:
        return self.lost.is_set() or self._view.is_overdue

    async def register(self, key: str, value: bytes) -> int:
        check_key(key)

        async def attempt() -> int | None:
            outcome = await self._view.settle(
                lambda ledger: ledger.decide_register(self.id, key, value)
            )
            assert isinstance(outcome, Committed)
            for event in outcome.events:
                assert isinstance(event, Registered)
                return event.registration.epoch
            # Already registered by an earlier call, or by one whose response was lost.
            await self._view.sync()
            held = (await self._view.registrations()).get(key)
            return held.epoch if held and held.session_id == self.id else None

        return await self._until(attempt)

    async def campaign(self, node_id: NodeId) -> Controller:
        async def attempt() -> Controller | None:
            outcome = await self._view.settle(lambda ledger: ledger.decide_elect(self.id, node_id))
            if isinstance(outcome, Conflict):
                return None
            for event in outcome.events:
                assert isinstance(event, Elected)
                return event.controller
            await self._view.sync()
            return await self._view.current_controller()

        return await self._until(attempt)

    async def resign(self) -> None:
        await self._view.settle(lambda ledger: ledger.decide_resign(self.id))

    async def close(self) -> None:
        if self.state is not SessionState.EXPIRED:
            await self._view.settle(lambda ledger: ledger.decide_end(self.id))
            self.move_to(SessionState.EXPIRED)
