"""What the clients of a simulated cluster share: its shape, its topic, the history, and the stop.

`Workload` is one, and starts the other clients with itself as their context.
"""

import asyncio
from collections.abc import Mapping

from simulation.history import History
from simulation.shape import Shape
from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.settings import ClientSettings
from suwi.model.errors import BrokerError, TopicAlreadyExists
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim.cluster import PORT, SimCluster

TOPIC = "orders"
_CLIENT = ClientSettings(connect_timeout_s=2, request_timeout_s=5, retry_timeout_s=20)


class StopSignal(asyncio.Event):
    """Tells clients to stop, whatever they wait for."""

    async def is_set_within(self, duration_s: float) -> bool:
        """Wait for so long, or until the signal is given; whether it is given."""
        try:
            async with asyncio.timeout(duration_s):
                await self.wait()
        except TimeoutError:
            return False
        return True


class WorkloadContext:
    def __init__(self, cluster: SimCluster, shape: Shape, history: History) -> None:
        self.history = history
        self.shape = shape
        self.partitions = [
            TopicPartition(TOPIC, PartitionIndex(i)) for i in range(shape.partitions)
        ]
        self.addresses = [Address(node.name, PORT) for node in cluster.nodes.values()]
        self._cluster = cluster
        self.is_calm = False
        """Everything is about to be healed."""
        self._stopped = StopSignal()
        self._awake = asyncio.Event()
        self._awake.set()

    def client(self, name: str) -> Cluster:
        return self._cluster.client(name, _CLIENT)

    async def create(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        client = self.client(f"admin {name}")
        exists = False
        while not exists:
            try:
                await Admin(client).create_topic(
                    name,
                    partitions=partitions,
                    replication_factor=self.shape.replication_factor,
                    configs={**self.shape.topic_configs(), **(configs or {})},
                )
                exists = True
            except TopicAlreadyExists:
                exists = True
            except (BrokerError, OSError):
                if await self.stopped_within(0.5):
                    break
        await client.close()

    def rest(self) -> None:
        """Pause all clients until `go_on`, once their current work is done."""
        self._awake.clear()

    def go_on(self) -> None:
        self._awake.set()

    def stop(self) -> None:
        self._stopped.set()

    async def stopped_within(self, duration_s: float) -> bool:
        await self._awake.wait()
        return await self._stopped.is_set_within(duration_s)
