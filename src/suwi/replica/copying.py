"""A broker's traffic with its peers for the sake of its replicas: copying, and in-sync sets.

`ReplicaManager` says what to copy; `start` begins, `stop` ends all of it.
"""

import asyncio
from typing import Final, Protocol

from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.model.broker_config import BrokerConfig
from suwi.model.ids import NodeId
from suwi.replica.alter_partition_manager import AlterPartitionManager
from suwi.replica.fetcher import Fetchers
from suwi.replica.leader_state import Proposal
from suwi.replica.partition import Partition
from suwi.replica.peers import HasBrokerEpoch, Peers

_ISR_SHRINK: Final = "isr shrink"
_PARTITIONS_PER_SLICE: Final = 256


class Copying(Protocol):
    def assign(self, partition: Partition) -> None:
        """Copy a partition from its leader, under its present epoch."""

    def assigned(self) -> None:
        """All that an image assigns has been assigned: fetch it now."""

    def release(self, partition: Partition) -> None:
        """Copy it no more."""

    def has(self, partition: Partition) -> bool: ...

    def propose(self, partition: Partition, proposal: Proposal) -> None: ...


class _NotCopying:
    def assign(self, partition: Partition) -> None:
        """Before the broker is in service nothing is copied; then everything is assigned anew."""

    def assigned(self) -> None: ...

    def release(self, partition: Partition) -> None: ...

    def has(self, partition: Partition) -> bool:
        return False

    def propose(self, partition: Partition, proposal: Proposal) -> None: ...


NOT_COPYING = _NotCopying()


class PeerCopying:
    """Copying over the network."""

    def __init__(
        self, node_id: NodeId, peers: Peers, config: BrokerConfig, owner: "Owner", tasks: Tasks
    ) -> None:
        self._fetchers = Fetchers(node_id, peers, config, owner, tasks)
        self._alter_partitions = AlterPartitionManager(node_id, peers, owner, tasks)
        self._owner = owner
        self._period_s = config.replica_lag_time_max_ms / 2000
        self._task = tasks.start(self._watch_laggards, name=_ISR_SHRINK, on_failure=RESTART)
        self._tasks = tasks

    def assign(self, partition: Partition) -> None:
        self._fetchers.assign(partition)

    def assigned(self) -> None:
        self._fetchers.assigned()

    def release(self, partition: Partition) -> None:
        self._fetchers.release(partition)

    def has(self, partition: Partition) -> bool:
        return self._fetchers.has(partition)

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        self._alter_partitions.propose(partition, proposal)

    async def _watch_laggards(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            for number, partition in enumerate(self._owner.led(), start=1):
                try:
                    partition.maybe_shrink_isr()
                except Exception as error:
                    self._tasks.count(_ISR_SHRINK, error)  # The others go on.
                if number % _PARTITIONS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        await self._alter_partitions.stop()
        await self._fetchers.stop()


class Owner(HasBrokerEpoch, Protocol):
    def led(self) -> list[Partition]: ...
