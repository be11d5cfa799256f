"""A session with ZooKeeper: the broker's registration and its controller candidacy.

Both send a multi and then read whose node exists, which also covers a lost response.
"""

from suwi.metadata import zookeeper_format as fmt
from suwi.metadata.session import SessionBase
from suwi.metadata.store import (
    AlreadyRegistered,
    Controller,
    MetadataStore,
    SessionLost,
    SessionState,
    check_key,
)
from suwi.metadata.zookeeper_connection import Connection
from suwi.metadata.zookeeper_format import registration_of
from suwi.model.ids import NodeId


class ZookeeperSession(SessionBase):
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
