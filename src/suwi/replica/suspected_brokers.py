"""Brokers whose connections have just broken: they are most likely dead, and others will lead.

A client that has lost its leader asks at once who leads now, and some then ask no more for a
second. So whoever answers waits for the election (`settled`), for a moment at most.
`Peers` says what connections there are (`reached`); a look at them tells at once which are broken,
since a client may ask before the loop has come to hear of it.
"""

import asyncio
from collections.abc import Callable, Iterable

from suwi.client.connection import PeerConnection
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.image import ClusterImage, Topic
from suwi.metadata.store import Unavailable
from suwi.model.ids import NodeId

_DOUBT_S_MAX = 0.3


class SuspectedBrokers:
    def __init__(self, follower: MetadataFollower) -> None:
        self._follower = follower
        self._broken: dict[NodeId, tuple[int, float]] = {}
        """In which life, and when."""
        self._connections: dict[PeerConnection, tuple[NodeId, int]] = {}
        """To whom they are, in which life."""

    def reached(self, node: NodeId, epoch: int, connection: PeerConnection) -> None:
        self._broken.pop(node, None)
        self._connections[connection] = node, epoch
        connection.when_ended(lambda broke: self._ended(connection, broke))

    def _ended(self, connection: PeerConnection, broke: bool) -> None:
        known = self._connections.pop(connection, None)
        if broke and known is not None:
            node, epoch = known
            self._broken[node] = epoch, asyncio.get_running_loop().time()

    def concern(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> bool:
        """Whether one who is doubted leads in these topics. Cheap while nobody is doubted."""
        for connection in [each for each in self._connections if each.is_hung_up]:
            self._ended(connection, broke=True)
        return bool(self._broken) and self._concern(self._follower.image, topics)

    async def settled(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> None:
        """Return when others lead, or when the moment for that is over."""
        try:
            async with asyncio.timeout(_DOUBT_S_MAX):
                await self._follower.until(lambda image: not self._concern(image, topics))
        except (TimeoutError, Unavailable):
            pass

    def _concern(
        self, image: ClusterImage, topics: Callable[[ClusterImage], Iterable[Topic]]
    ) -> bool:
        now = asyncio.get_running_loop().time()
        for node, (epoch, since) in list(self._broken.items()):
            known = image.unfenced_brokers.get(node)
            if known is None or known.epoch != epoch or now >= since + _DOUBT_S_MAX:
                del self._broken[node]
        return bool(self._broken) and any(
            state.leader in self._broken for topic in topics(image) for state in topic.partitions
        )
