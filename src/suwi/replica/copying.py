"""A broker's traffic with its peers for the sake of its replicas: copying, and in-sync sets.

`Replicas` says what to copy; `start` begins, `stop` ends all of it.
"""

import asyncio
from typing import Protocol

from suwi.model.broker_config import BrokerConfig
from suwi.model.ids import NodeId
from suwi.replica.fetcher import Fetchers
from suwi.replica.isr_changes import IsrChanges
from suwi.replica.leadership import Proposal
from suwi.replica.partition import Partition
from suwi.replica.peers import Peers


class Copying(Protocol):
    def assign(self, partition: Partition) -> None:
        """Copy a partition from its leader, under its present epoch."""

    def release(self, partition: Partition) -> None:
        """Copy it no more."""

    def has(self, partition: Partition) -> bool: ...

    def propose(self, partition: Partition, proposal: Proposal) -> None: ...


class _NotCopying:
    def assign(self, partition: Partition) -> None:
        """Before the broker is in service nothing is copied; then everything is assigned anew."""

    def release(self, partition: Partition) -> None: ...

    def has(self, partition: Partition) -> bool:
        return False

    def propose(self, partition: Partition, proposal: Proposal) -> None: ...


NOT_COPYING = _NotCopying()


class PeerCopying:
    """Copying over the network."""

    def __init__(self, node_id: NodeId, peers: Peers, config: BrokerConfig, owner: "Owner") -> None:
        self._fetchers = Fetchers(node_id, peers, config, lambda: owner.broker_epoch)
        self._isr_changes = IsrChanges(node_id, peers, lambda: owner.broker_epoch)
        self._owner = owner
        self._period_s = config.replica_lag_time_max_ms / 2000
        self._task = asyncio.get_running_loop().create_task(self._watch_laggards())

    def assign(self, partition: Partition) -> None:
        self._fetchers.assign(partition)

    def release(self, partition: Partition) -> None:
        self._fetchers.release(partition)

    def has(self, partition: Partition) -> bool:
        return self._fetchers.has(partition)

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        self._isr_changes.propose(partition, proposal)

    async def _watch_laggards(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            for partition in self._owner.led():
                partition.drop_laggards()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._isr_changes.stop()
        await self._fetchers.stop()


class Owner(Protocol):
    broker_epoch: int

    def led(self) -> list[Partition]: ...
