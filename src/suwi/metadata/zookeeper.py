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
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)

from suwi.metadata import zookeeper_format as fmt
from suwi.metadata.loop_guard import LoopGuard
from suwi.metadata.store import (
    ABSENT,
    ANY,
    CONTROLLER_KEY,
    HISTORY_CHANGES,
    Applied,
    Change,
    Closed,
    Conflict,
    Controller,
    Entry,
    Gap,
    NotController,
    Operation,
    Put,
    Registration,
    SessionState,
    Snapshot,
    Unavailable,
    Unknown,
    WriteResult,
    check_key,
    check_write,
    values_of,
)
from suwi.metadata.zookeeper_format import Node, Step, registration_of
from suwi.metadata.zookeeper_session import ZookeeperSession

_DISCONNECTED = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_RESTART_WAIT_S = 5.0


class Connection:
    """kazoo's requests as futures of the event loop."""

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        self.client = KazooClient(
            hosts, timeout=session_timeout_s, connection_retry=dict(_RECONNECT)
        )
        self._loop = asyncio.get_running_loop()
        self.closed = False

    def call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` on the event loop, from one of kazoo's threads."""
        with contextlib.suppress(RuntimeError):  # The loop has been closed.
            self._loop.call_soon_threadsafe(callback, *args)

    def check(self) -> None:
        if self.closed:
            raise Closed("closed")
        if not self.client.connected:
            raise Unavailable("disconnected from ZooKeeper")

    @property
    def session_id(self) -> int | None:
        client_id = self.client.client_id
        return client_id[0] if client_id and self.client.connected else None

    async def request(self, *requests: Callable[[], Any]) -> list[Any]:
        """Send the requests in order; the result of a missing znode is None."""
        self.check()
        futures = [self._send(request) for request in requests]
        responses: list[Any] = await asyncio.gather(*futures, return_exceptions=True)
        for at, response in enumerate(responses):
            if isinstance(response, NoNodeError):
                responses[at] = None
            elif isinstance(response, _DISCONNECTED):
                raise Unavailable("disconnected from ZooKeeper") from response
            elif isinstance(response, BaseException):
                raise response
        return responses

    async def get(self, *paths: str) -> list[Node | None]:
        return await self.request(*(partial(self.client.get_async, path) for path in paths))

    async def multi(self, steps: Sequence[Step]) -> bool | None:
        """Whether it was applied; None if the response was lost.

        Raises `Unavailable` if it was not sent.
        """
        self.check()
        transaction = self.client.transaction()
        for method, path, args in steps:
            getattr(transaction, method)(path, *args)
        try:
            responses = await self._send(transaction.commit_async)
        except _DISCONNECTED:
            return None
        return not any(isinstance(response, Exception) for response in responses)

    def _send(self, request: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        request().rawlink(lambda result: self.call_on_loop(_complete, future, result))
        return future


def _complete(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


class ZookeeperStore:
    is_shared = True

    def __init__(self, connection: Connection, root: str, session_timeout_s: float) -> None:
        self._connection = connection
        self._client = connection.client
        self._loop = asyncio.get_running_loop()
        self._paths = fmt.Paths(root)
        self._session: ZookeeperSession | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._subscribed = 0
        self._guard = LoopGuard(session_timeout_s, self._client.stop, self._client.start_async)
        # kazoo keeps watchers in sets: always pass the same objects, so that none is added twice.
        self._watches = {
            self._paths.head: self._client.get_async,
            self._paths.registrations: self._client.get_children_async,
            self._paths.controller: self._client.exists_async,
        }
        self._watchers = {path: self._make_watcher(path) for path in self._watches}

    @classmethod
    async def open(
        cls,
        hosts: str,
        *,
        root: str = "/suwi",
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = 15.0,
    ) -> "ZookeeperStore":
        """Connect to the ensemble and create Suwi's znodes if they are missing."""
        connection = Connection(hosts, session_timeout_s)
        store = cls(connection, root, session_timeout_s)
        connection.client.add_listener(store._state_listener)
        start = connection.client.start
        try:
            await asyncio.get_running_loop().run_in_executor(None, start, connect_timeout_s)
        except connection.client.handler.timeout_exception as error:
            raise Unavailable(f"no ZooKeeper at {hosts}") from error
        try:
            await store._make_nodes()
        except BaseException:
            await store.close()
            raise
        store._guard.start()
        store._watch_all()
        return store

    async def close(self) -> None:
        if self._connection.closed:
            return
        self._connection.closed = True
        self._callbacks.clear()
        self._guard.stop()
        if self._session is not None:
            self._session.move_to(SessionState.EXPIRED)

        def stop() -> None:
            self._client.stop()
            self._client.close()

        await self._loop.run_in_executor(None, stop)

    async def _make_nodes(self) -> None:
        paths = self._paths
        await self._connection.request(lambda: self._client.ensure_path_async(paths.root))
        nodes = {
            paths.entries: b"",
            paths.ring: b"",
            **{paths.slot(number): b"" for number in range(HISTORY_CHANGES)},
            paths.registrations: b"",
            paths.controller_epoch: fmt.encode_number(0),
            paths.head: fmt.encode_number(0),
        }
        (head,) = await self._connection.get(paths.head)
        if head is not None:
            return
        for path, data in nodes.items():
            with contextlib.suppress(NodeExistsError):
                await self._connection.request(partial(self._client.create_async, path, data))

    # Entries

    async def read(self, key: str) -> Entry | None:
        check_key(key)
        (node,) = await self._connection.get(self._paths.entry(key))
        return fmt.decode_entry(key, node[0]) if node else None

    async def read_all(self, prefix: str = "") -> Snapshot:
        while True:
            before = await self._head()
            (names,) = await self._connection.request(
                lambda: self._client.get_children_async(self._paths.entries)
            )
            keys = [key for key in map(fmt.key_of, names) if key.startswith(prefix)]
            nodes = await self._connection.get(*map(self._paths.entry, keys))
            entries = {
                key: fmt.decode_entry(key, node[0])
                for key, node in zip(keys, nodes, strict=True)
                if node
            }
            changes = await self.changes_after(before)
            if not isinstance(changes, Gap):
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
        (node,) = await self._connection.get(self._paths.head)
        assert node is not None
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
            try:
                fence = self._fence(controller_epoch, epoch, controller)
                refused = _first_conflict(operations, nodes)
            except NotController:
                fence, refused = [], CONTROLLER_KEY
            if refused is None:
                sequence, steps = self._steps(operations, nodes, head)
                applied = await self._connection.multi(fence + steps)
                if applied is None:
                    return Unknown()
                if applied:
                    return Applied(sequence)
            elif synced:
                return Conflict(refused)
            # The reads were or may have been stale.
            await self.sync()
            synced = True

    def _fence(
        self, controller_epoch: int | None, epoch: Node | None, controller: Node | None
    ) -> list[Step]:
        """Steps of a multi that fail once this controller is not the current one."""
        if controller_epoch is None:
            return []
        assert epoch is not None
        if controller is None or fmt.decode_controller(controller[0]).epoch != controller_epoch:
            raise NotController(controller_epoch)
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
        await self._connection.request(lambda: self._client.sync_async(self._paths.root))

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
        (response,) = await self._connection.request(
            lambda: self._client.get_children_async(self._paths.registrations, include_data=True)
        )
        names, stat = response
        return stat.pzxid, names

    async def deregister(
        self, key: str, epoch: int, *, controller_epoch: int | None = None
    ) -> None:
        path = self._paths.registration(key)
        while True:
            await self.sync()
            parent, held, epoch_node, controller = await self._connection.get(
                self._paths.registrations,
                path,
                self._paths.controller_epoch,
                self._paths.controller,
            )
            assert parent is not None
            if held is None or held[1].czxid != epoch:
                return
            fence = self._fence(controller_epoch, epoch_node, controller)
            # Each registration sets the parent node: if its version has changed, the node with
            # this name may be a later registration.
            unchanged: Step = ("check", self._paths.registrations, (parent[1].version,))
            if await self._connection.multi([*fence, unchanged, ("delete", path, ())]):
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
            try:
                fence = self._fence(controller_epoch, epoch, controller)
            except NotController:
                return
            if await self._connection.multi([*fence, ("delete", self._paths.controller, ())]):
                return

    # Sessions and notifications

    async def open_session(self) -> "ZookeeperSession":
        self._connection.check()
        assert self._session is None or self._session.lost.is_set(), "one session at a time"
        session_id = self._connection.session_id
        if session_id is None:
            raise Unavailable("disconnected from ZooKeeper")
        self._session = ZookeeperSession(session_id, self, self._connection, self._paths)
        return self._session

    async def end_session(self) -> None:
        """End the session with ZooKeeper, and start another so that reads still work."""

        def restart() -> None:
            self._client.stop()
            self._client.start_async().wait(_RESTART_WAIT_S)

        await self._loop.run_in_executor(None, restart)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._subscribed += 1
        number = self._subscribed
        self._callbacks[number] = callback
        return lambda: self._callbacks.pop(number, None) and None

    def _notify(self) -> None:
        for callback in list(self._callbacks.values()):
            callback()

    def _state_listener(self, state: str) -> None:
        """Called by kazoo's connection thread."""
        self._connection.call_on_loop(self._on_state, state, self._connection.session_id)

    def _on_state(self, state: str, session_id: int | None) -> None:
        session = self._session
        if session is not None:
            if state == KazooState.SUSPENDED:
                session.move_to(SessionState.DISCONNECTED)
            elif session.id == session_id:
                session.move_to(SessionState.CONNECTED)
            else:
                session.move_to(SessionState.EXPIRED)
        if state == KazooState.CONNECTED:
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
