"""Brokers whose connections have just broken: they have probably failed.

A client that lost its leader requests metadata at once, and some clients then do not ask again for
a second. So the metadata response waits for the election (`wait_for_election`), for a short time at
most. `Peers` reports connections (`connected`). `affects` checks them for a broken one itself,
because a client may ask before the event loop has processed the disconnect.
"""

import asyncio
from collections.abc import Callable, Iterable

from suwi.client.connection import PeerConnection
from suwi.metadata.image import ClusterImage, Topic
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Unavailable
from suwi.model.ids import NodeId

_SUSPECTED_S_MAX = 0.3


class SuspectedBrokers:
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
