"""Connections from this broker to other brokers, at the endpoints in the metadata image."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.metadata.image import BrokerInfo, ClusterImage, Endpoint
from suwi.model.ids import NodeId
from suwi.replica.suspected_brokers import SuspectedBrokers

Connect: TypeAlias = Callable[[Endpoint], Awaitable[PeerConnection]]
"""Opens a connection, with TLS and SASL login where the listener needs them. Raises OSError."""
Prove: TypeAlias = Callable[[PeerConnection, NodeId], Awaitable[None]]
"""Authenticates this broker to the peer where no SASL login did so. Raises OSError."""


class HasImage(Protocol):
    @property
    def image(self) -> ClusterImage: ...


class HasBrokerEpoch(Protocol):
    broker_epoch: int
    """This broker's epoch while it is registered."""


class Peers:
    def __init__(
        self,
        metadata: HasImage,
        listener: str,
        connect: Connect,
        prove: Prove,
        suspected: SuspectedBrokers,
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._connect = connect
        self._prove = prove
        self._suspected = suspected

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
