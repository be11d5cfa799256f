"""Assigns partitions to fetchers: one `ReplicaFetcher` for each leader."""

from collections.abc import Callable

from suwi.model.ids import NodeId
from suwi.replica.partition import Partition
from suwi.replica.replica_fetcher import ReplicaFetcher


class ReplicaFetcherManager:
    def __init__(self, make_fetcher: Callable[[NodeId], ReplicaFetcher]) -> None:
        self._make_fetcher = make_fetcher
        self._fetchers: dict[NodeId, ReplicaFetcher] = {}
        self._leaders: dict[Partition, NodeId] = {}

    def add_fetcher_for(self, partition: Partition) -> None:
        """Fetch a partition from its leader under its current leader epoch."""
        leader = partition.leader
        self.remove_fetcher_for(partition)
        if leader not in self._fetchers:
            self._fetchers[leader] = self._make_fetcher(leader)
        self._leaders[partition] = leader
        self._fetchers[leader].add(partition)

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
