"""The metadata store of a cluster of several processes: Apache ZooKeeper, through kazoo.

`ZookeeperStore.open` connects; zookeeper_format.py describes the znodes. A write is one multi:
checks of the controller epoch, the changed entries, one slot of the ring with the change itself,
and the head, whose version check serializes writers. A write first reads everything it depends on.
Each change updates the head and each election the controller epoch, so the multi's version checks
of these two prove that nothing has changed since.
Invariant: the ring has the 64 changes up to the head, each written by the multi that set the head.

kazoo has its own threads; its callbacks are passed to the event loop. Its watches fire once and are
dropped on a disconnect: they are set again after each notification and each connect. It keeps
sending pings while the event loop hangs, so a guard ends the session if the loop hangs for longer
than the session timeout.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from suwi.metadata import zookeeper_format as fmt
from suwi.metadata.kafka_znodes import KafkaZnodes
from suwi.metadata.store import (
    ABSENT,
    ANY,
    CONTROLLER_KEY,
    HISTORY_CHANGES,
    AlreadyRegistered,
    Applied,
    Change,
    Conflict,
    Controller,
    Entry,
    Gap,
    MetadataStore,
    Operation,
    Put,
    ReadableCopy,
    Registration,
    SessionLost,
    SessionState,
    Snapshot,
    StoreRolledBack,
    Unavailable,
    Unknown,
    WriteResult,
    check_key,
    check_write,
    values_of,
)
from suwi.metadata.store_session import SessionBase, Subscribers
from suwi.metadata.zookeeper_connection import (
    Connection,
    LoopGuard,
    ZookeeperSettings,
    may_change,
)
from suwi.metadata.zookeeper_format import Node, Step, registration_of
from suwi.model.ids import NodeId

log = logging.getLogger(__name__)

_RETRY_S = 0.2


class ZookeeperStore(Subscribers):
    is_shared = True
    full_errors = 0

    def __init__(self, settings: ZookeeperSettings) -> None:
        super().__init__()
        self._connection = Connection(settings, self._on_state)
        self._client = self._connection.client
        self._paths = fmt.Paths(settings.root)
        self._session: ZookeeperSession | None = None
        self.readable_copy: ReadableCopy | None = None
        if settings.copied_listeners is not None:
            self.readable_copy = KafkaZnodes(
                self, self._connection, self._paths, settings.copied_listeners
            )
        self._guard = LoopGuard(
            settings.session_timeout_s,
            self._connection.stop_from_thread,
            self._connection.restart,
        )
        # kazoo keeps watchers in sets: always pass the same objects, so that none is added twice.
        self._watches = {
            self._paths.head: self._client.get_async,
            self._paths.registrations: self._client.get_children_async,
            self._paths.controller: self._client.exists_async,
        }
        self._watchers = {path: self._make_watcher(path) for path in self._watches}

    @classmethod
    async def open(
        cls, settings: ZookeeperSettings, *, connect_timeout_s: float | None = None
    ) -> "ZookeeperStore":
        """Connect to the ensemble and create Suwi's znodes if they are missing.

        Waits until that is possible; with a time limit it raises `Unavailable`. Raises
        `AccessDenied`.
        """
        store = cls(settings)
        store._connection.start()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await store._prepare()
        except TimeoutError:
            await store.close()
            raise Unavailable(f"no ZooKeeper at {settings.hosts}") from None
        except BaseException:
            await store.close()
            raise
        store._guard.start()
        store._watch_all()
        return store

    async def _warn_if_open(self) -> None:
        if await may_change(self._connection, self._paths.head):
            fields = {"path": self._paths.root, "do": "set zookeeper.auth before the first start"}
            log.warning("anybody can change the metadata in ZooKeeper", extra=fields)

    async def close(self) -> None:
        if self._connection.closed:
            return
        self._callbacks.clear()
        self._guard.stop()
        if self._session is not None:
            self._session.move_to(SessionState.EXPIRED)
        await self._connection.close()

    async def _prepare(self) -> None:
        while True:
            await self._connection.wait_connected()
            try:
                await self._make_nodes()
                return await self._warn_if_open()
            except Unavailable:
                await asyncio.sleep(_RETRY_S)

    async def _make_nodes(self) -> None:
        paths = self._paths
        await self._connection.ensure_path(paths.root)
        (head,) = await self._connection.get(paths.head)
        if head is None:
            await self._connection.create(
                [
                    (paths.entries, b""),
                    *((bucket, b"") for bucket in paths.buckets()),
                    (paths.ring, b""),
                    *((paths.slot(number), b"") for number in range(HISTORY_CHANGES)),
                    (paths.registrations, b""),
                    (paths.controller_epoch, fmt.encode_number(0)),
                    # The last one: where it exists, the others do.
                    (paths.head, fmt.encode_number(0)),
                ]
            )

    # Entries

    async def read(self, key: str) -> Entry | None:
        check_key(key)
        (node,) = await self._connection.get(self._paths.entry(key))
        return fmt.decode_entry(key, node[0]) if node else None

    async def read_all(self, prefix: str = "") -> Snapshot:
        while True:
            session_id = self._connection.session_id
            before = await self._head()
            buckets = await self._connection.children(*self._paths.buckets())
            names = (name for names, _ in buckets for name in names)
            keys = [key for key in map(fmt.key_of, names) if key.startswith(prefix)]
            nodes = await self._connection.get(*map(self._paths.entry, keys))
            entries = {
                key: fmt.decode_entry(key, node[0])
                for key, node in zip(keys, nodes, strict=True)
                if node
            }
            changes = await self.changes_after(before)
            # In a new session the entries may have been read as they were before `before`.
            is_same_session = session_id == self._connection.session_id
            if is_same_session and not isinstance(changes, Gap):
                return _caught_up(entries, changes, before, prefix)

    async def changes_after(self, sequence: int) -> list[Change] | Gap:
        head = await self._head()
        if head - sequence > HISTORY_CHANGES:
            return Gap()
        wanted = range(sequence + 1, head + 1)
        nodes = await self._connection.get(*map(self._paths.slot, wanted))
        changes = [fmt.decode_change(node[0]) for node in nodes if node]
        # A slot may have been overwritten after the head was read.
        return changes if [c.sequence for c in changes] == list(wanted) else Gap()

    async def _head(self) -> int:
        """Raises StoreRolledBack if it is behind what this connection has seen."""
        head, seen = await self._read_head(), self._connection.head_seen
        if head < seen:
            await self.sync()  # A new session may read older state at first.
            head = await self._read_head()
            if head < seen:
                raise StoreRolledBack(fmt.rolled_back(head, seen))
        self._connection.saw(head)
        return head

    async def _read_head(self) -> int:
        (node,) = await self._connection.get(self._paths.head)
        if node is None:
            raise StoreRolledBack(f"{self._paths.head} is missing: ZooKeeper has lost its data")
        return fmt.decode_number(node[0])

    async def write(
        self, operations: Sequence[Operation], *, controller_epoch: int | None = None
    ) -> WriteResult:
        check_write(operations)
        synced = False
        while True:
            head, epoch, controller, *nodes = await self._connection.get(
                self._paths.head,
                self._paths.controller_epoch,
                self._paths.controller,
                *(self._paths.entry(operation.key) for operation in operations),
            )
            assert head is not None
            fence = self._fence(controller_epoch, epoch, controller)
            refused = _first_conflict(operations, nodes)
            if fence is None:
                refused = CONTROLLER_KEY
            elif refused is None:
                sequence, steps = self._steps(operations, nodes, head)
                applied = await self._connection.multi(fence + steps)
                if applied is None:
                    return Unknown()
                if applied:
                    return Applied(sequence)
            if refused is not None and synced:
                return Conflict(refused)
            # The reads were or may have been stale.
            await self.sync()
            synced = True

    def _fence(
        self, controller_epoch: int | None, epoch: Node | None, controller: Node | None
    ) -> list[Step] | None:
        """Steps of a multi that fail once this controller is not the current one; None if it is not
        even now."""
        if controller_epoch is None:
            return []
        assert epoch is not None
        if controller is None or fmt.decode_controller(controller[0]).epoch != controller_epoch:
            return None
        # The controller node alone is not enough: a later controller's has the same version.
        return [
            ("check", self._paths.controller_epoch, (epoch[1].version,)),
            ("check", self._paths.controller, (controller[1].version,)),
        ]

    def _steps(
        self, operations: Sequence[Operation], nodes: Sequence[Node | None], head: Node
    ) -> tuple[int, list[Step]]:
        """The sequence number of this write, and the steps of its multi."""
        values = values_of(operations)
        latest, head_version = fmt.decode_number(head[0]), head[1].version
        if not values:
            return latest, [("check", self._paths.head, (head_version,))]
        sequence = latest + 1
        steps: list[Step] = []
        for operation, node in zip(operations, nodes, strict=True):
            path = self._paths.entry(operation.key)
            if isinstance(operation, Put):
                data = fmt.encode_entry(operation.value, sequence)
                steps.append(("set_data" if node else "create", path, (data,)))
            elif operation.key in values and node:
                steps.append(("delete", path, ()))
        steps.append(
            ("set_data", self._paths.slot(sequence), (fmt.encode_change(sequence, values),))
        )
        steps.append(("set_data", self._paths.head, (fmt.encode_number(sequence), head_version)))
        return sequence, steps

    async def sync(self) -> None:
        await self._connection.sync()

    # Registrations and the controller

    async def registrations(self, prefix: str = "") -> Mapping[str, Registration]:
        while True:
            before, names = await self._registration_names()
            keys = [key for key in map(fmt.key_of, names) if key.startswith(prefix)]
            nodes = await self._connection.get(*map(self._paths.registration, keys))
            if (await self._registration_names())[0] == before:
                return {
                    key: registration_of(key, node)
                    for key, node in zip(keys, nodes, strict=True)
                    if node
                }

    async def _registration_names(self) -> tuple[int, list[str]]:
        """The zxid of the last registration or unregistration, and the names of the znodes."""
        ((names, stat),) = await self._connection.children(self._paths.registrations)
        return stat.pzxid, names

    async def deregister(self, key: str, epoch: int) -> None:
        path = self._paths.registration(key)
        while True:
            await self.sync()
            parent, held = await self._connection.get(self._paths.registrations, path)
            assert parent is not None
            if held is None or held[1].czxid != epoch:
                return
            # Each registration sets the parent node: if its version has changed, the node with
            # this name may be a later registration.
            unchanged: Step = ("check", self._paths.registrations, (parent[1].version,))
            if await self._connection.multi([unchanged, ("delete", path, ())]):
                return

    async def current_controller(self) -> Controller | None:
        (node,) = await self._connection.get(self._paths.controller)
        return fmt.decode_controller(node[0]) if node else None

    async def depose(self, controller_epoch: int) -> None:
        while True:
            await self.sync()
            epoch, controller = await self._connection.get(
                self._paths.controller_epoch, self._paths.controller
            )
            fence = self._fence(controller_epoch, epoch, controller)
            if fence is None or await self._connection.multi(
                [*fence, ("delete", self._paths.controller, ())]
            ):
                return

    # Sessions and notifications

    async def open_session(self) -> "ZookeeperSession":
        self._connection.check()
        assert self._session is None or self._session.lost.is_set(), "one session at a time"
        session_id = self._connection.session_id
        await self.sync()  # It confirms the session from now on.
        if session_id is None or session_id != self._connection.session_id:
            raise Unavailable("disconnected from ZooKeeper")
        self._session = ZookeeperSession(session_id, self, self._connection, self._paths)
        return self._session

    def _on_state(self, state: SessionState, session_id: int | None) -> None:
        session = self._session
        if session is not None:
            if state is SessionState.CONNECTED and session.id != session_id:
                state = SessionState.EXPIRED
            session.move_to(state)
        if self._client.connected:
            self._watch_all()
        self._notify()

    def _make_watcher(self, path: str) -> Callable[[Any], None]:
        return lambda _event: self._connection.call_on_loop(self._watch, path)

    def _watch_all(self) -> None:
        for path in self._watches:
            self._watch(path)

    def _watch(self, path: str) -> None:
        """Set the watch, then notify the subscribers, so that no change in between is missed."""
        if self._connection.closed or not self._client.connected:
            return  # All watches are set after connecting.
        read, watcher = self._watches[path], self._watchers[path]
        read(path, watch=watcher).rawlink(
            lambda _result: self._connection.call_on_loop(self._notify)
        )


def _first_conflict(operations: Sequence[Operation], nodes: Sequence[Node | None]) -> str | None:
    for operation, node in zip(operations, nodes, strict=True):
        version = fmt.decode_entry(operation.key, node[0]).version if node else ABSENT
        if operation.expected_version not in (ANY, version):
            return operation.key
    return None


def _caught_up(
    entries: dict[str, Entry], changes: Sequence[Change], before: int, prefix: str
) -> Snapshot:
    """A snapshot as of the last change, from entries that were read one by one before or after
    each of the changes."""
    for change in changes:
        for key, value in change.values.items():
            if not key.startswith(prefix) or (
                key in entries and entries[key].version >= change.sequence
            ):
                continue
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = Entry(key, value, change.sequence)
    return Snapshot(entries, changes[-1].sequence if changes else before)


class ZookeeperSession(SessionBase):
    """The broker's registration and its controller candidacy. Both send a multi and then read whose
    node exists, which also covers a lost response."""

    def __init__(
        self, session_id: int, store: MetadataStore, connection: Connection, paths: fmt.Paths
    ) -> None:
        super().__init__(session_id, store.subscribe)
        self._store = store
        self._connection = connection
        self._paths = paths

    @property
    def timeout_s(self) -> float | None:
        return self._connection.timeout_s

    @property
    def is_overdue(self) -> bool:
        return self.lost.is_set() or not self._connection.is_confirmed

    async def register(self, key: str, value: bytes) -> int:
        check_key(key)
        path = self._paths.registration(key)

        async def attempt() -> int | None:
            while True:
                self._check_own()
                await self._connection.multi(
                    [
                        ("set_data", self._paths.registrations, (b"",)),
                        ("create", path, (value, None, True)),
                    ]
                )
                await self._store.sync()
                (node,) = await self._connection.get(path)
                if node is None:
                    continue
                held = registration_of(key, node)
                self._check_own()
                if held.session_id != self.id or held.value != value:
                    raise AlreadyRegistered(held)
                return held.epoch

        return await self._until(attempt)

    async def campaign(self, node_id: NodeId) -> Controller:
        async def attempt() -> Controller | None:
            while True:
                self._check_own()
                await self._store.sync()
                epoch, elected = await self._connection.get(
                    self._paths.controller_epoch, self._paths.controller
                )
                assert epoch is not None
                if elected is not None:
                    mine = elected[1].ephemeralOwner == self.id
                    return fmt.decode_controller(elected[0]) if mine else None
                controller = Controller(node_id, fmt.decode_number(epoch[0]) + 1)
                next_epoch = (fmt.encode_number(controller.epoch), epoch[1].version)
                controller_node = (fmt.encode_controller(controller), None, True)
                await self._connection.multi(
                    [
                        ("set_data", self._paths.controller_epoch, next_epoch),
                        ("create", self._paths.controller, controller_node),
                    ]
                )

        return await self._until(attempt)

    async def resign(self) -> None:
        await self._store.sync()
        (elected,) = await self._connection.get(self._paths.controller)
        if elected is not None and elected[1].ephemeralOwner == self.id:
            await self._store.depose(fmt.decode_controller(elected[0]).epoch)

    async def close(self) -> None:
        if self.state is not SessionState.EXPIRED:
            self.move_to(SessionState.EXPIRED)
            await self._connection.end_session()

    def _check_own(self) -> None:
        """Hazard Z9: kazoo continues in a new session by itself; nodes created there do not belong
        to this one. What kazoo says of it may still be on its way: whoever tries again must not
        find this session in order."""
        if self._connection.session_id not in (None, self.id):
            self.move_to(SessionState.EXPIRED)
            raise SessionLost(self.id)
