"""The state of a metadata store in one process, as a pure state machine.

The `decide_*` methods return events or a Conflict and change nothing; only `replay` changes the
state. The events of one decision are one transaction. The memory store replays them at once, the
embedded store when they are on disk.
Invariant: transaction, sequence and controller_epoch never decrease; the epoch of a registration
is the number of the transaction that made it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from suwi.metadata.store import (
    ABSENT,
    ANY,
    CONTROLLER_KEY,
    HISTORY_CHANGES,
    AlreadyRegistered,
    Change,
    Conflict,
    Controller,
    Entry,
    Gap,
    Operation,
    Registration,
    SessionLost,
    values_of,
)
from suwi.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Changed:
    change: Change


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session_id: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    session_id: int


@dataclass(frozen=True, slots=True)
class Registered:
    registration: Registration


@dataclass(frozen=True, slots=True)
class Deregistered:
    key: str


@dataclass(frozen=True, slots=True)
class Elected:
    controller: Controller
    session_id: int


@dataclass(frozen=True, slots=True)
class Deposed:
    pass


Event: TypeAlias = (
    Changed | SessionOpened | SessionEnded | Registered | Deregistered | Elected | Deposed
)
Decision: TypeAlias = tuple[Event, ...] | Conflict
"""The events to replay (none, if empty), or the conflict."""


@dataclass(slots=True)
class Ledger:
    transaction: int = 0
    sequence: int = 0
    controller_epoch: int = 0
    """The greatest one so far."""
    entries: dict[str, Entry] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=lambda: deque(maxlen=HISTORY_CHANGES))
    sessions: dict[int, None] = field(default_factory=dict)
    registrations: dict[str, Registration] = field(default_factory=dict)
    controller: Controller | None = None
    controller_session: int | None = None

    def copy(self) -> "Ledger":
        return replace(
            self,
            entries=dict(self.entries),
            history=deque(self.history, maxlen=HISTORY_CHANGES),
            sessions=dict(self.sessions),
            registrations=dict(self.registrations),
        )

    def changes_after(self, sequence: int) -> list[Change] | Gap:
        missing = self.sequence - sequence
        if missing <= 0:
            return []  # The reader may have seen more than a lagging read shows.
        if missing > len(self.history):
            return Gap()
        return list(self.history)[-missing:]

    def is_active_controller(self, controller_epoch: int) -> bool:
        return self.controller is not None and self.controller.epoch == controller_epoch

    def decide_write(
        self, operations: Sequence[Operation], controller_epoch: int | None
    ) -> Decision:
        if controller_epoch is not None and not self.is_active_controller(controller_epoch):
            return Conflict(CONTROLLER_KEY)
        for operation in operations:
            entry = self.entries.get(operation.key)
            version = entry.version if entry else ABSENT
            if operation.expected_version not in (ANY, version):
                return Conflict(operation.key)
        values = values_of(operations)
        return (Changed(Change(self.sequence + 1, values)),) if values else ()

    def decide_open(self) -> Decision:
        return (SessionOpened(self.transaction + 1),)

    def decide_end(self, session_id: int) -> Decision:
        return (SessionEnded(session_id),) if session_id in self.sessions else ()

    def decide_register(self, session_id: int, key: str, value: bytes) -> Decision:
        self._require_session(session_id)
        held = self.registrations.get(key)
        if held is None:
            return (Registered(Registration(key, value, self.transaction + 1, session_id)),)
        if held.session_id != session_id or held.value != value:
            raise AlreadyRegistered(held)
        return ()

    def decide_deregister(self, key: str, epoch: int) -> Decision:
        held = self.registrations.get(key)
        return (Deregistered(key),) if held is not None and held.epoch == epoch else ()

    def decide_elect(self, session_id: int, node_id: NodeId) -> Decision:
        self._require_session(session_id)
        if self.controller is None:
            return (Elected(Controller(node_id, self.controller_epoch + 1), session_id),)
        return () if self.controller_session == session_id else Conflict(CONTROLLER_KEY)

    def decide_depose(self, controller_epoch: int) -> Decision:
        return (Deposed(),) if self.is_active_controller(controller_epoch) else ()

    def decide_resign(self, session_id: int) -> Decision:
        return (Deposed(),) if self.controller_session == session_id else ()

    def replay(self, events: Sequence[Event]) -> None:
        if events:
            self.transaction += 1
        for event in events:
            self._replay(event)

    def _replay(self, event: Event) -> None:
        match event:
            case Changed(change):
                self._replay_change(change)
            case SessionOpened(session_id):
                self.sessions[session_id] = None
            case SessionEnded(session_id):
                del self.sessions[session_id]
                self.registrations = {
                    key: held
                    for key, held in self.registrations.items()
                    if held.session_id != session_id
                }
                if self.controller_session == session_id:
                    self.controller = self.controller_session = None
            case Registered(registration):
                assert registration.epoch == self.transaction
                self.registrations[registration.key] = registration
            case Deregistered(key):
                del self.registrations[key]
            case Elected(controller, session_id):
                assert controller.epoch > self.controller_epoch
                self.controller, self.controller_session = controller, session_id
                self.controller_epoch = controller.epoch
            case Deposed():
                self.controller = self.controller_session = None

    def _replay_change(self, change: Change) -> None:
        assert change.sequence == self.sequence + 1
        self.sequence = change.sequence
        self.history.append(change)
        for key, value in change.values.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = Entry(key, value, change.sequence)

    def _require_session(self, session_id: int) -> None:
        if session_id not in self.sessions:
            raise SessionLost(session_id)
