"""Connections from this broker to others, made as the cluster image says."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.metadata.image import BrokerInfo, ClusterImage, Endpoint
from suwi.model.ids import NodeId
from suwi.replica.suspected_brokers import SuspectedBrokers

Connect: TypeAlias = Callable[[Endpoint], Awaitable[PeerConnection]]
"""Opens a connection, with TLS and a log-in where the listener asks for them. Raises OSError."""
Prove: TypeAlias = Callable[[PeerConnection, NodeId], Awaitable[None]]
"""Has a broker take this one for a broker, where a log-in does not do that. Raises OSError."""


class HasImage(Protocol):
    @property
    def image(self) -> ClusterImage: ...


class HasBrokerEpoch(Protocol):
    broker_epoch: int
    """This broker's own, while it is registered."""


class Peers:
    def __init__(
        self,
        metadata: HasImage,
        listener: str,
        connect: Connect,
        prove: Prove,
        doubts: SuspectedBrokers,
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._connect = connect
        self._prove = prove
        self._doubts = doubts

    async def connect(self, node: NodeId) -> PeerConnection:
        """A new connection to a broker, for the caller alone. Raises OSError."""
        broker = self._metadata.image.registered_brokers.get(node)
        if broker is None:
            raise ConnectionLost(f"broker {node} is not known")
        return await self.connect_to(broker)

    async def connect_to(self, broker: BrokerInfo) -> PeerConnection:
        """As `connect`, where the image need not show the broker. Raises OSError."""
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            raise ConnectionLost(f"broker {broker.id} is not known on listener {self._listener}")
        connection = await self._connect(endpoint)
        self._doubts.reached(broker.id, broker.epoch, connection)
        await self._prove(connection, broker.id)
        return connection

    async def connect_to_controller(self) -> PeerConnection:
        """Raises OSError, also while there is no controller."""
        controller = self._metadata.image.controller
        if controller is None:
            raise ConnectionLost("there is no controller at the moment")
        return await self.connect(controller)
