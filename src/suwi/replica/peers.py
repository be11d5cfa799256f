"""Connections from this broker to other brokers, at the endpoints in the metadata image."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.metadata.image import BrokerInfo, ClusterImage, Endpoint, Topic
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Unavailable
from suwi.model.ids import NodeId

Connect: TypeAlias = Callable[[Endpoint], Awaitable[PeerConnection]]
"""Opens a connection, with TLS and SASL login where the listener needs them. Raises OSError."""
Prove: TypeAlias = Callable[[PeerConnection, NodeId], Awaitable[None]]
"""Authenticates this broker to the peer where no SASL login did so. Raises OSError."""

_SUSPECTED_S_MAX = 0.3


class SuspectedBrokers:
    """Brokers whose connections have just broken: they have probably failed.

    A client that lost its leader requests metadata at once, and some clients then do not ask again
    for a second. So the metadata response waits for the election (`wait_for_election`), for a short
    time at most. `Peers` reports connections (`connected`). `affects` checks them for a broken one
    itself, because a client may ask before the event loop has processed the disconnect.
    """

    def __init__(self, follower: MetadataFollower) -> None:
        self._follower = follower
        self._broken: dict[NodeId, tuple[int, float]] = {}
        """The broker epoch, and when the connection broke."""
        self._connections: dict[PeerConnection, tuple[NodeId, int]] = {}
        """The broker and its epoch."""

    def connected(self, node: NodeId, epoch: int, connection: PeerConnection) -> None:
        self._broken.pop(node, None)
        self._connections[connection] = node, epoch
        connection.when_ended(lambda broke: self._ended(connection, broke))

    def _ended(self, connection: PeerConnection, broke: bool) -> None:
        known = self._connections.pop(connection, None)
        if broke and known is not None:
            node, epoch = known
            self._broken[node] = epoch, asyncio.get_running_loop().time()

    def affects(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> bool:
        """Whether a suspected broker leads one of these topics. Cheap while none is suspected."""
        for connection in [each for each in self._connections if each.is_hung_up]:
            self._ended(connection, broke=True)
        return bool(self._broken) and self._affects(self._follower.image, topics)

    async def wait_for_election(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> None:
        """Return when the topics have other leaders, or when the time limit is over."""
        try:
            async with asyncio.timeout(_SUSPECTED_S_MAX):
                await self._follower.until(lambda image: not self._affects(image, topics))
        except (TimeoutError, Unavailable):
            pass

    def _affects(
        self, image: ClusterImage, topics: Callable[[ClusterImage], Iterable[Topic]]
    ) -> bool:
        now = asyncio.get_running_loop().time()
        for node, (epoch, since) in list(self._broken.items()):
            known = image.unfenced_brokers.get(node)
            if known is None or known.epoch != epoch or now >= since + _SUSPECTED_S_MAX:
                del self._broken[node]
        return bool(self._broken) and any(
            state.leader in self._broken for topic in topics(image) for state in topic.partitions
        )


class HasImage(Protocol):
    @property
    def image(self) -> ClusterImage: ...


class HasBrokerEpoch(Protocol):
    broker_epoch: int
    """This broker's epoch while it is registered."""


@dataclass(eq=False)
class Peers:
    _metadata: HasImage
    _listener: str
    _connect: Connect
    _prove: Prove
    _suspected: SuspectedBrokers

    async def connect(self, node: NodeId) -> PeerConnection:
        """A new connection to a broker, used by the caller only. Raises OSError."""
        broker = self._metadata.image.registered_brokers.get(node)
        if broker is None:
            raise ConnectionLost(f"broker {node} is not registered")
        return await self.connect_to(broker)

    async def connect_to(self, broker: BrokerInfo) -> PeerConnection:
        """As `connect`, for a broker that need not be in the image. Raises OSError."""
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            raise ConnectionLost(f"broker {broker.id} has no listener {self._listener}")
        connection = await self._connect(endpoint)
        self._suspected.connected(broker.id, broker.epoch, connection)
        await self._prove(connection, broker.id)
        return connection

    async def connect_to_controller(self) -> PeerConnection:
        """Raises OSError, also while there is no active controller."""
        controller = self._metadata.image.controller
        if controller is None:
            raise ConnectionLost("there is no active controller")
        return await self.connect(controller)
