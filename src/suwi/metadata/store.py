"""The metadata store as the rest of the broker sees it: a narrow port with a strict contract.

A `MetadataStore` is one broker's connection. Every implementation passes tests/metadata.

Entries. Keys are slash paths ("topics/orders"), values opaque bytes. A `write` is atomic and
becomes one `Change`; changes are numbered 1, 2, 3, … without gaps, and an entry's version is the
number of the change that last put it. A version is therefore never used twice, not even by an
entry that was deleted and made again.

Outcomes. A write ends as `Applied`, as `Conflict` (nothing was written) or as `Unknown` (it may
have been applied). After Unknown: `sync`, read again and compare; never retry blindly. Repeating
a write whose every change names its expected version is safe, because at most one of the two can
be applied; to tell which, look for the values in `changes_after`. `Unavailable` is raised where
it is certain that nothing was written or read.

Reading. Reads may lag behind the store, each of them consistent in itself; they do not go
backwards within a session, but a new session may read older state than the last one did. After
`sync` reads show everything that was applied before it was called. `subscribe`d callbacks come
late and coalesced and only say that something may have changed (entries, registrations,
controller, session state); reads made after a callback show at least what caused it.

Sessions. A `Session` carries the broker's registration and its candidacy. While disconnected it
may or may not have ended already; `lost` is set when it is known to have ended. Registrations are
not part of the sequence of changes: they vanish with their session, and each one's epoch is
greater than all epochs before it.

Controller. At most one is elected at a time, each with a greater epoch than the one before. A
write that carries a controller epoch is a Conflict on `CONTROLLER_KEY` from the moment that
controller is deposed, resigns or loses its session, even before another one is elected.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from suwi.model.ids import NodeId

ANY = -1
"""Expected version: whatever is there, even nothing."""
ABSENT = 0
"""Expected version: no such entry."""

HISTORY_CHANGES = 64
"""How many of the latest changes `changes_after` can give."""
WRITE_BYTES_MAX = 448 * 1024
"""The largest write, as `write_bytes` counts; a larger change is split by its author.

ZooKeeper takes 1 MiB in one packet, and a write is in it twice: as entries and as the change.
"""
CONTROLLER_KEY = "controller"
"""The key a Conflict names when the controller epoch is not the current one."""

_CHANGE_OVERHEAD_BYTES = 64


class Unavailable(Exception):
    """The store cannot be reached; nothing was read or written."""


class Closed(Unavailable):
    """This connection to the store was closed and will not come back."""


class SessionLost(Exception):
    """The session has ended: its registrations are gone."""


class NotController(Exception):
    """The controller epoch given is not the current one."""


class AlreadyRegistered(Exception):
    """Another session holds the registration, or this one does with another value."""

    def __init__(self, registration: "Registration") -> None:
        super().__init__(f"{registration.key} is registered by session {registration.session_id}")
        self.registration = registration


class Entry(NamedTuple):
    key: str
    value: bytes
    version: int


class Snapshot(NamedTuple):
    """The entries right after change number `sequence`."""

    entries: Mapping[str, Entry]
    sequence: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    expected_version: int = ANY


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an entry. With ANY it need not exist."""

    key: str
    expected_version: int = ANY


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but refuse the write unless the entry has this version."""

    key: str
    expected_version: int


Operation: TypeAlias = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Change:
    """What one write did: the new value of each key, None where it was deleted."""

    sequence: int
    values: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Gap:
    """The changes asked for are no longer kept: read all again."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Written, as change number `sequence`; a write of mere checks gives the latest number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Refused: `key` did not have the expected version. Nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer was lost: the write may have been applied, or not."""


WriteResult: TypeAlias = Applied | Conflict | Unknown


class Registration(NamedTuple):
    """An entry that lives as long as the session that made it."""

    key: str
    value: bytes
    epoch: int
    session_id: int


class Controller(NamedTuple):
    node_id: NodeId
    epoch: int


class SessionState(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    """Cut off from the store, which may have ended the session meanwhile."""
    EXPIRED = "expired"
    """Ended, by the store or by `close`."""


class Session(Protocol):
    """One stay of a broker in the cluster."""

    @property
    def id(self) -> int: ...

    @property
    def state(self) -> SessionState: ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the session is known to have ended; it never comes back."""

    async def register(self, key: str, value: bytes) -> int:
        """Make an entry that vanishes with this session; return its epoch (the broker epoch).

        Waits while disconnected. Asking again with the same value returns the same epoch.
        Raises `AlreadyRegistered` where another holds the key, and `SessionLost`.
        """

    async def campaign(self, node_id: NodeId) -> Controller:
        """Wait until elected; return at once where this session is the controller already.

        Whoever cancels this calls `resign`: the election may have been won in the meantime.
        Raises `SessionLost`.
        """

    async def resign(self) -> None:
        """Stop being the controller, if this session is. Raises `Unavailable`."""

    async def close(self) -> None:
        """End the session: registrations and controllership are gone for all at once."""


class MetadataStore(Protocol):
    @property
    def is_shared(self) -> bool:
        """Whether brokers of other processes may use the same store."""

    async def read(self, key: str) -> Entry | None: ...

    async def read_all(self, prefix: str = "") -> Snapshot:
        """All entries whose key starts with `prefix`, as of one change."""

    async def write(
        self, operations: Sequence[Operation], *, controller_epoch: int | None = None
    ) -> WriteResult:
        """Apply all operations or none. Each key may occur once.

        With a controller epoch the write is refused unless that controller is still in office.
        """

    async def changes_after(self, sequence: int) -> list[Change] | Gap:
        """The changes that follow `sequence`, in order, without gaps; empty if there are none."""

    async def sync(self) -> None:
        """Return when reads show all that was applied before the call."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the event loop when something may have changed; returns the way out."""

    async def registrations(self, prefix: str = "") -> Mapping[str, Registration]: ...

    async def deregister(
        self, key: str, epoch: int, *, controller_epoch: int | None = None
    ) -> None:
        """Remove exactly this registration; return when it is gone, whoever removed it.

        Raises `NotController` where the controller epoch given is not current, `Unavailable`.
        """

    async def current_controller(self) -> Controller | None: ...

    async def depose(self, controller_epoch: int) -> None:
        """End exactly this controller's term; return when it is over, whoever ended it.

        Raises `Unavailable`.
        """

    async def open_session(self) -> Session:
        """A new session. One connection carries one session at a time."""

    async def close(self) -> None:
        """End the session, forget the subscribers, leave the store."""


def write_bytes(operations: Sequence[Operation]) -> int:
    """The size of a write as `WRITE_BYTES_MAX` limits it."""
    return sum(
        _CHANGE_OVERHEAD_BYTES
        + len(operation.key)
        + (len(operation.value) if isinstance(operation, Put) else 0)
        for operation in operations
    )


def check_write(operations: Sequence[Operation]) -> None:
    """Raise ValueError for a write that no store may accept: a mistake of its author."""
    for operation in operations:
        check_key(operation.key)
    if len({operation.key for operation in operations}) != len(operations):
        raise ValueError("a write names each key once")
    size_bytes = write_bytes(operations)
    if size_bytes > WRITE_BYTES_MAX:
        raise ValueError(f"write of {size_bytes} bytes exceeds {WRITE_BYTES_MAX}")


def check_key(key: str) -> None:
    if not key.isprintable() or any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"not a key: {key!r}")


def values_of(operations: Sequence[Operation]) -> dict[str, bytes | None]:
    """The values of the change these operations make, to compare after `Unknown`."""
    return {
        operation.key: operation.value if isinstance(operation, Put) else None
        for operation in operations
        if not isinstance(operation, Check)
    }


async def allocate(
    store: MetadataStore, name: str, count: int, *, controller_epoch: int | None = None
) -> int:
    """Take `count` consecutive ids that nobody ever gets again; return the first.

    Blocks may be skipped: one whose write ended as Unknown is used only if a later write, with
    the same expected version, proves that the first was not applied.
    Raises `NotController` and `Unavailable`.
    """
    assert count > 0
    key = f"ids/{name}"
    while True:
        entry = await store.read(key)
        first = int(entry.value) if entry else 0
        put = Put(key, b"%d" % (first + count), entry.version if entry else ABSENT)
        match await store.write([put], controller_epoch=controller_epoch):
            case Applied():
                return first
            case Conflict(key=refused) if refused == CONTROLLER_KEY:
                raise NotController(controller_epoch)
            case Conflict() | Unknown():
                await store.sync()
