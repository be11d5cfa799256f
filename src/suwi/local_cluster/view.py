"""What each broker of a local cluster says about it: controller, leaders, in-sync replicas."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.settings import ClientSettings
from suwi.env import local_env
from suwi.model.errors import BrokerError, BrokerIdNotRegistered
from suwi.model.ids import NO_NODE, NodeId

_SETTINGS = ClientSettings(connect_timeout_s=3, request_timeout_s=5)


class View(NamedTuple):
    """The cluster as one broker sees it."""

    brokers: frozenset[int]
    controller: int | None
    leaders: dict[str, int]
    """The leader of each partition that has one."""
    replicas: dict[str, tuple[int, ...]]
    """Of each partition."""
    not_in_sync: tuple[str, ...]
    """Partitions without a leader, or with fewer in-sync replicas than replicas."""

    @property
    def partitions(self) -> int:
        return len(self.replicas)

    def replicas_on(self, broker: int) -> list[str]:
        """The partitions of which a broker has, or is to get, a replica."""
        return [name for name, replicas in self.replicas.items() if broker in replicas]

    def led_by(self, broker: int) -> int:
        """How many partitions a broker leads."""
        return sum(leader == broker for leader in self.leaders.values())

    def is_in_sync(self, brokers: frozenset[int]) -> bool:
        """Whether these brokers are there with a controller, and every replica is in sync."""
        return self.brokers == brokers and self.controller is not None and not self.not_in_sync


def views(addresses: Mapping[int, Address]) -> dict[int, View | None]:
    """Ask each broker; None if it does not answer. Not for use on an event loop."""

    async def ask_all() -> list[View | None]:
        return await asyncio.gather(*map(_ask, addresses.values()))

    return dict(zip(addresses, asyncio.run(ask_all()), strict=True))


def unregister(addresses: Sequence[Address], broker: int) -> None:
    """Delete what the metadata has of a broker that has stopped. Raises BrokerError."""

    async def ask() -> None:
        async with Cluster(addresses, random=local_env().random, settings=_SETTINGS) as cluster:
            with contextlib.suppress(BrokerIdNotRegistered):  # nothing is left of it
                await Admin(cluster).unregister_broker(NodeId(broker))

    asyncio.run(ask())


async def _ask(address: Address) -> View | None:
    try:
        async with Cluster([address], random=local_env().random, settings=_SETTINGS) as cluster:
            topics = await cluster.topics()
            brokers = frozenset(map(int, cluster.brokers))
            controller = (await Admin(cluster).describe_cluster()).controller
    except (OSError, ConnectionLost, BrokerError, TimeoutError):
        return None
    partitions = [(topic.name, partition) for topic in topics for partition in topic.partitions]
    return View(
        brokers,
        controller,
        {f"{name}-{p.index}": int(p.leader) for name, p in partitions if p.leader != NO_NODE},
        {f"{name}-{p.index}": tuple(map(int, p.replicas)) for name, p in partitions},
        tuple(
            f"{name}-{p.index}"
            for name, p in partitions
            if p.leader == NO_NODE or set(p.isr) != set(p.replicas)
        ),
    )
