"""Assigns partitions to fetchers: one `ReplicaFetcher` for each leader."""

from suwi.env.tasks import Tasks
from suwi.model.broker_config import BrokerConfig
from suwi.model.ids import NodeId
from suwi.replica.partition import Partition
from suwi.replica.peers import HasBrokerEpoch, Peers
from suwi.replica.replica_fetcher import ReplicaFetcher


class ReplicaFetcherManager:
    def __init__(
        self,
        node_id: NodeId,
        peers: Peers,
        config: BrokerConfig,
        owner: HasBrokerEpoch,
        tasks: Tasks,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._config = config
        self._owner = owner
        self._tasks = tasks
        self._fetchers: dict[NodeId, ReplicaFetcher] = {}
        self._leaders: dict[Partition, NodeId] = {}

    def add_fetcher_for(self, partition: Partition) -> None:
        """Fetch a partition from its leader under its current leader epoch."""
        leader = partition.leader
        self.remove_fetcher_for(partition)
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                leader, self._node_id, self._peers, self._config, self._owner, self._tasks
            )
        self._leaders[partition] = leader
        fetcher.add(partition)

    def partitions_added(self) -> None:
        """All partitions of an image have been added: fetch them now."""
        for fetcher in self._fetchers.values():
            fetcher.added()

    def remove_fetcher_for(self, partition: Partition) -> None:
        leader = self._leaders.pop(partition, None)
        if leader is not None:
            self._fetchers[leader].remove(partition)

    def has(self, partition: Partition) -> bool:
        return partition in self._leaders

    async def stop(self) -> None:
        for fetcher in list(self._fetchers.values()):
            await fetcher.stop()
