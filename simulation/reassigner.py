"""A client that moves replicas to other brokers again and again, and changes its mind.

Each step gives a partition a random target, which overrides the one it may have, or cancels its
reassignment. The responses do not matter: whatever the controller accepted must end, and nothing
acknowledged may be lost meanwhile. `stop` is called before everything is healed: then the last
targets must be reached.
"""

import asyncio
from contextlib import suppress

from simulation.topic_churn import CHURNED
from simulation.workload_context import WorkloadContext
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim.random import SimRandom

_CANCEL_CHANCE = 0.25


class Reassigner:
    def __init__(self, workload: WorkloadContext, random: SimRandom) -> None:
        self._workload = workload
        self._random = random
        self._client: Cluster = workload.client("reassigner")
        self._is_stopped = False
        self._partitions = list(workload.partitions)
        if workload.shape.churns:
            self._partitions.append(TopicPartition(CHURNED, PartitionIndex(0)))

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self) -> None:
        pause_s_max = self._random.choice((0.3, 1.0, 4.0))
        while not await self._workload.stopped_within(self._random.uniform(0, pause_s_max)):
            if self._is_stopped:
                continue
            partition = self._random.choice(self._partitions)
            target = None if self._random.chance(_CANCEL_CHANCE) else self._target()
            with suppress(BrokerError, OSError, asyncio.TimeoutError):
                await Admin(self._client).reassign({partition: target})
        await self._client.close()

    def _target(self) -> list[int]:
        shape = self._workload.shape
        size = self._random.choice((1, 2, 2, 3, 3, 3, shape.replication_factor, shape.brokers))
        nodes = list(range(1, shape.brokers + 1))
        self._random.shuffle(nodes)
        return nodes[:size]
