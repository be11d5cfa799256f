"""Brokers whose connections have just broken: they are most likely dead, and others will lead.

A client that has lost its leader asks at once who leads now, and some then ask no more for a
second. So whoever answers waits for the election (`settled`), for a moment at most.
`Peers` says when a connection breaks (`broke`) and when a broker was reached again (`reached`).
"""

import asyncio
from collections.abc import Callable, Iterable

from suwi.metadata.follower import MetadataFollower
from suwi.metadata.image import ClusterImage, Topic
from suwi.model.ids import NodeId

_DOUBT_S_MAX = 0.3


class Doubts:
    def __init__(self, follower: MetadataFollower) -> None:
        self._follower = follower
        self._broken: dict[NodeId, tuple[int, float]] = {}
        """In which life, and when."""

    def broke(self, node: NodeId, epoch: int) -> None:
        self._broken[node] = epoch, asyncio.get_running_loop().time()

    def reached(self, node: NodeId) -> None:
        self._broken.pop(node, None)

    def concern(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> bool:
        """Whether one who is doubted leads in these topics. Cheap while nobody is doubted."""
        return bool(self._broken) and self._concern(self._follower.image, topics)

    async def settled(self, topics: Callable[[ClusterImage], Iterable[Topic]]) -> None:
        """Return when others lead, or when the moment for that is over."""
        try:
            async with asyncio.timeout(_DOUBT_S_MAX):
                await self._follower.until(lambda image: not self._concern(image, topics))
        except TimeoutError:
            pass

    def _concern(
        self, image: ClusterImage, topics: Callable[[ClusterImage], Iterable[Topic]]
    ) -> bool:
        now = asyncio.get_running_loop().time()
        for node, (epoch, since) in list(self._broken.items()):
            known = image.brokers.get(node)
            if known is None or known.epoch != epoch or now >= since + _DOUBT_S_MAX:
                del self._broken[node]
        return bool(self._broken) and any(
            state.leader in self._broken for topic in topics(image) for state in topic.partitions
        )
