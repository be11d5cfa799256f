"""The metadata store's interface and contract.

A `MetadataStore` is one broker's connection. Every implementation passes tests/metadata.

Entries. Keys are slash paths ("topics/orders"), values opaque bytes. A `write` is atomic and
becomes one `Change`; changes are numbered 1, 2, 3, … without gaps, and an entry's version is the
number of the change that last put it. A version is therefore never used twice, not even by an
entry that was deleted and created again.

Outcomes. A write ends as `Applied`, as `Conflict` (nothing was written) or as `Unknown` (it may
have been applied). After Unknown: `sync`, read again and compare; never just repeat the write.
Repeating a write in which every operation has an expected version is safe, because at most one of
the two can be applied; to find out which, look for the values in `changes_after`. `Unavailable` is
raised if it is certain that nothing was written or read.

Reading. Reads may be stale, but each is consistent in itself. Within a session they do not go
backwards, but a new session may read older state than the previous one did. After `sync`, reads
show everything that was applied before `sync` was called. Callbacks passed to `subscribe` may come
late, and one callback may stand for several changes; a callback only means that something may have
changed (entries, registrations, controller, session state). Reads after a callback show at least
the change that caused it.

Sessions. A broker's registration and its candidacy as controller belong to a `Session`. A
disconnected session may already have ended; `lost` is set when it is known to have ended.
Registrations are not part of the sequence of changes: they are removed when their session ends.
The epoch of each registration is greater than all earlier epochs.

Controller. There is at most one at a time, each with a greater epoch than the one before. A
write that carries a controller epoch is a Conflict on `CONTROLLER_KEY` from the moment that
controller is deposed, resigns or loses its session, even before another one is elected.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from suwi.model.ids import NodeId

log = logging.getLogger(__name__)

ANY = -1
"""Expected version: any, or no entry."""
ABSENT = 0
"""Expected version: no such entry."""

HISTORY_CHANGES = 64
"""How many of the latest changes `changes_after` can return."""
WRITE_BYTES_MAX = 448 * 1024
"""The largest write, as counted by `write_bytes`; the writer splits larger ones.

ZooKeeper allows packets of 1 MiB, and a write is in the packet twice: as entries and as the change.
"""
CONTROLLER_KEY = "controller"
"""The key of a Conflict if the controller epoch is not the current one."""

_CHANGE_OVERHEAD_BYTES = 64
_RETRY_S = 0.2

T = TypeVar("T")


class Unavailable(Exception):
    """The store is unavailable; nothing was read or written."""


class Closed(Unavailable):
    """This connection to the store was closed for good."""


class StoreRolledBack(Exception):
    """The store has lost changes that this broker has seen (hazard Z11)."""


class SessionLost(Exception):
    """The session has ended, and with it its registrations."""


class AlreadyRegistered(Exception):
    """The key is registered by another session, or by this one with another value."""

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
    """Changes nothing; the write is a Conflict unless the entry has this version."""

    key: str
    expected_version: int


Operation: TypeAlias = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Change:
    """The result of one write: the new value of each key, None if it was deleted."""

    sequence: int
    values: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Gap:
    """The requested changes are no longer available: read everything again."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Written as change number `sequence`; for checks alone, the number of the latest change."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Refused: `key` did not have the expected version. Nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The response was lost: the write may or may not have been applied."""


WriteResult: TypeAlias = Applied | Conflict | Unknown


class Registration(NamedTuple):
    """An entry that is removed when the session that created it ends."""

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
    """Not connected to the store, which may have ended the session meanwhile."""
    EXPIRED = "expired"
    """Ended, by the store or by `close`."""


class Session(Protocol):
    """A broker's session with the store."""

    @property
    def id(self) -> int: ...

    @property
    def state(self) -> SessionState: ...

    @property
    def timeout_s(self) -> float | None:
        """The session timeout that the store has granted; None if its sessions have none."""

    @property
    def lost(self) -> asyncio.Event:
        """Set once the session is known to have ended; that is final."""

    @property
    def is_overdue(self) -> bool:
        """Whether the store has not confirmed the session for its timeout. It may have ended it
        since, and another broker may be the controller; only the store can tell (hazard Z6)."""

    async def register(self, key: str, value: bytes) -> int:
        """Create an entry that is removed with this session; returns its epoch (the broker epoch).

        Waits while disconnected. Registering again with the same value returns the same epoch.
        Raises `AlreadyRegistered` if the key is registered otherwise, and `SessionLost`.
        """

    async def campaign(self, node_id: NodeId) -> Controller:
        """Wait until elected; returns at once if this session already is the controller's.

        After cancelling it, call `resign`: the election may have been won in the meantime.
        Raises `SessionLost`.
        """

    async def resign(self) -> None:
        """Resign as controller, if this session is the controller's. Raises `Unavailable`."""

    async def close(self) -> None:
        """End the session; its registrations and its controller election end at once."""


class ReadableCopy(Protocol):
    """A copy of a few facts for people and tools; see `kafka_znodes`."""

    async def prepare(self) -> None:
        """Raises ForeignZnodes, Unavailable."""

    async def keep(self, key: str) -> None:
        """Copy the registration of this key, and the controller, for as long as the store is
        open."""


class ForeignZnodes(Exception):
    """Another cluster has the znodes of the readable copy."""


class MetadataStore(Protocol):
    @property
    def is_shared(self) -> bool:
        """Whether brokers in other processes may use the same store."""

    @property
    def full_errors(self) -> int:
        """How many writes failed because the disk of a store in this process was full."""

    @property
    def readable_copy(self) -> ReadableCopy | None: ...

    async def read(self, key: str) -> Entry | None: ...

    async def read_all(self, prefix: str = "") -> Snapshot:
        """All entries whose key starts with `prefix`, as of one change."""

    async def write(
        self, operations: Sequence[Operation], *, controller_epoch: int | None = None
    ) -> WriteResult:
        """Apply all operations or none. Each key may occur once.

        With a controller epoch, the write is a Conflict unless that is the current controller's.
        """

    async def changes_after(self, sequence: int) -> list[Change] | Gap:
        """The changes that follow `sequence`, in order, without gaps; empty if there are none."""

    async def sync(self) -> None:
        """Return when reads show everything that was applied before the call."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` on the event loop when something may have changed; returns a function
        that unsubscribes."""

    async def registrations(self, prefix: str = "") -> Mapping[str, Registration]: ...

    async def deregister(self, key: str, epoch: int) -> None:
        """Remove exactly this registration; returns when it does not exist any more.

        Raises `Unavailable`.
        """

    async def current_controller(self) -> Controller | None: ...

    async def depose(self, controller_epoch: int) -> None:
        """Depose exactly this controller; returns when it is not the controller any more.

        Raises `Unavailable`.
        """

    async def open_session(self) -> Session:
        """Open a session. A connection has one session at a time."""

    async def close(self) -> None:
        """End the session, drop the subscribers and close the connection."""


def write_bytes(operations: Sequence[Operation]) -> int:
    """The size of a write, for `WRITE_BYTES_MAX`."""
    return sum(
        _CHANGE_OVERHEAD_BYTES
        + len(operation.key)
        + (len(operation.value) if isinstance(operation, Put) else 0)
        for operation in operations
    )


def check_write(operations: Sequence[Operation]) -> None:
    """Raises ValueError for an invalid write, which is a bug of the caller."""
    for operation in operations:
        check_key(operation.key)
    if len({operation.key for operation in operations}) != len(operations):
        raise ValueError("a write has two operations on the same key")
    size_bytes = write_bytes(operations)
    if size_bytes > WRITE_BYTES_MAX:
        raise ValueError(f"write of {size_bytes} bytes exceeds {WRITE_BYTES_MAX}")


def check_key(key: str) -> None:
    if not key.isprintable() or any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"not a key: {key!r}")


def values_of(operations: Sequence[Operation]) -> dict[str, bytes | None]:
    """The values of the change that these operations make, to compare after `Unknown`."""
    return {
        operation.key: operation.value if isinstance(operation, Put) else None
        for operation in operations
        if not isinstance(operation, Check)
    }


async def until_available(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat the attempt until the store is available. Raises `Closed`."""
    last_reason = ""
    while True:
        try:
            return await attempt()
        except Closed:
            raise
        except Unavailable as error:
            if str(error) != last_reason:
                last_reason = str(error)
                log.warning("metadata store unavailable, retrying", extra={"reason": last_reason})
        await asyncio.sleep(_RETRY_S)


async def allocate(store: MetadataStore, name: str, count: int) -> int:
    """Allocate `count` consecutive ids that are never allocated again; returns the first.

    Ids may be skipped: after an Unknown write its ids are used only if a later write with the same
    expected version is applied, which proves that the first was not.
    Raises `Unavailable`.
    """
    assert count > 0
    key = f"ids/{name}"
    while True:
        entry = await store.read(key)
        first = int(entry.value) if entry else 0
        put = Put(key, b"%d" % (first + count), entry.version if entry else ABSENT)
        if isinstance(await store.write([put]), Applied):
            return first
        await store.sync()
