"""A client's view of a cluster: metadata, and connections to brokers and partition leaders.

`topic` and `leader` look up metadata and refresh it if it is stale, `link` connects to a broker,
`call` sends a request to any broker, `call_controller` to the controller. There are no retries
here: the caller knows what may be retried (`retry`, `routing`). When a connection ends, all cached
metadata is stale.
Invariant: there is at most one connection to each address, and one more for Suwi's own APIs
(`own_link`); a lost one is replaced on the next use. That of `open_link` belongs to its caller.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.client.errors import Unreachable, error_from
from suwi.client.settings import ClientSettings
from suwi.client.versioned_connection import Connect, VersionedConnection, connect_plain
from suwi.env import Random
from suwi.model.errors import (
    LeaderNotAvailable,
    NotController,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import (
    NO_EPOCH,
    NO_NODE,
    NO_TOPIC_ID,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from suwi.wire.versions import ApiKey


class BrokerInfo(NamedTuple):
    id: NodeId
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: PartitionIndex
    leader: NodeId = NO_NODE
    """NO_NODE if there is none."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    replicas: tuple[NodeId, ...] = ()
    isr: tuple[NodeId, ...] = ()
    offline: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: TopicId
    """NO_TOPIC_ID if the broker is too old to have topic ids."""
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    """In order of their index."""

    def partition(self, index: int) -> PartitionInfo:
        """Raises `UnknownTopicOrPartition`."""
        if not 0 <= index < len(self.partitions):
            last = len(self.partitions) - 1
            raise UnknownTopicOrPartition(
                f"topic {self.name!r} has no partition {index}: "
                + (f"its partitions are 0 to {last}" if last else "it has partition 0 only")
            )
        return self.partitions[index]


class Place(NamedTuple):
    """A partition and its topic in the cached metadata."""

    topic: TopicInfo
    partition: PartitionInfo


class Cluster:
    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        random: Random,
        settings: ClientSettings | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        self.random = random
        self.id: str | None = None
        self.brokers: dict[NodeId, BrokerInfo] = {}
        self.controller = NO_NODE
        self._bootstrap = tuple(bootstrap)
        self._connect = connect or connect_plain(self.settings.client_id)
        self._links: dict[Address, VersionedConnection] = {}
        self._own_links: dict[Address, VersionedConnection] = {}
        self._connect_locks: dict[Address, asyncio.Lock] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._refreshed_s: dict[str, float] = {}
        """When each topic was last refreshed; a topic without an entry is stale."""
        self._all_refreshed_s = float("-inf")

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        links = [*self._links.values(), *self._own_links.values()]
        self._links.clear()  # Those that are being made are added to the same.
        self._own_links.clear()
        for link in links:
            await link.close()

    def twin(self) -> "Cluster":
        """The same cluster through other connections: a broker answers the requests of one
        connection in turn, so behind a fetch that waits for records they wait, too."""
        return Cluster(
            self._bootstrap, random=self.random, settings=self.settings, connect=self._connect
        )

    # -- connections -----------------------------------------------------------------------------

    async def link(self, node: NodeId) -> VersionedConnection:
        """A connection to a broker. Raises OSError, and `LeaderNotAvailable` if it is not live."""
        return await self._connect_to(self._address(node), self._links)

    async def own_link(self, node: NodeId) -> VersionedConnection:
        """A second one, for Suwi's own APIs: a broker that does not know them closes it."""
        return await self._connect_to(self._address(node), self._own_links)

    async def any_own_link(self) -> VersionedConnection:
        """The same to any reachable broker. Raises OSError."""
        return await self._connect_to((await self.any_link()).address, self._own_links)

    async def open_link(self, node: NodeId) -> VersionedConnection:
        """A connection of the caller's own to one broker; raises what `link` does."""
        return await VersionedConnection.open(self._address(node), self._connect, self.settings)

    async def any_link(self) -> VersionedConnection:
        """A connection to any reachable broker. Raises `Unreachable`."""
        tried: list[tuple[Address, Exception]] = []
        for address in self._candidates():
            try:
                return await self._connect_to(address, self._links)
            except OSError as error:
                tried.append((address, error))
        raise Unreachable(tried)

    def _address(self, node: NodeId) -> Address:
        if node not in self.brokers:
            raise LeaderNotAvailable(f"broker {node} is not among the live brokers")
        return self.brokers[node].address

    def _candidates(self) -> Iterable[Address]:
        """Addresses with open connections, then the known brokers, then the bootstrap addresses."""
        is_open = [address for address, link in self._links.items() if link.is_open]
        known = [broker.address for broker in self.brokers.values()]
        offset = self.random.below(len(known)) if known else 0
        return dict.fromkeys([*is_open, *known[offset:], *known[:offset], *self._bootstrap])

    async def _connect_to(
        self, address: Address, links: dict[Address, VersionedConnection]
    ) -> VersionedConnection:
        link = links.get(address)
        if link is not None and link.is_open:
            return link
        async with self._connect_locks.setdefault(address, asyncio.Lock()):
            link = links.get(address)
            if link is None or not link.is_open:
                link = await VersionedConnection.open(address, self._connect, self.settings)
                if links is self._links:
                    # With acks=0 a broker that no longer leads can only close the connection.
                    link.when_ended(self._refreshed_s.clear)
                links[address] = link
            return link

    # -- messages --------------------------------------------------------------------------------

    async def call(self, api: ApiKey, fields: Mapping[str, Any], **limits: Any) -> Any:
        """Send a request to any broker; see `VersionedConnection.call`."""
        return await (await self.any_link()).call(api, fields, **limits)

    async def call_controller(self, api: ApiKey, fields: Mapping[str, Any], **limits: Any) -> Any:
        """Send a request to the active controller, which may have changed since the last call."""
        await self.refresh([])
        if self.controller not in self.brokers:
            raise NotController("the cluster has no controller at the moment")
        return await (await self.link(self.controller)).call(api, fields, **limits)

    # -- metadata --------------------------------------------------------------------------------

    async def topics(self, *, age_s_max: float = 0) -> list[TopicInfo]:
        """All topics, by name, as they were at most so long ago."""
        if self._now_s() - self._all_refreshed_s >= age_s_max:
            await self.refresh(None)
        return [self._topics[name] for name in sorted(self._topics)]

    async def existing(self, names: Iterable[str], *, age_s_max: float) -> dict[str, TopicInfo]:
        """Those of the topics that exist, as they were at most so long ago."""
        wanted, oldest_s = list(names), self._now_s() - age_s_max
        if self._all_refreshed_s < oldest_s and wanted:
            await self.refresh(wanted)
        return {name: self._topics[name] for name in wanted if name in self._topics}

    async def topic(self, name: str, *, fresh: bool = False) -> TopicInfo:
        """One topic. Raises `UnknownTopicOrPartition`, `InvalidTopic`, `Unreachable`."""
        age_s = self._now_s() - self._refreshed_s.get(name, float("-inf"))
        if fresh or name not in self._topics or age_s > self.settings.metadata_age_s_max:
            errors = await self.refresh([name])
            if name in errors:
                raise error_from(errors[name], _unknown_topic_text(name, errors[name]))
        return self._topics[name]

    async def locate(self, partition: TopicPartition) -> Place:
        """The leader of a partition, without connecting to it.

        Raises `LeaderNotAvailable`, `UnknownTopicOrPartition`, and OSError.
        """
        topic = await self.topic(partition.topic)
        if partition.partition >= len(topic.partitions):
            topic = await self.topic(partition.topic, fresh=True)  # the partition may be new
        info = topic.partition(partition.partition)
        if info.leader not in self.brokers:
            self.mark_stale(partition.topic)
            raise LeaderNotAvailable(f"{partition} has no leader at the moment")
        return Place(topic, info)

    async def leader(self, partition: TopicPartition) -> tuple[VersionedConnection, Place]:
        """A connection to the leader of a partition. Raises what `locate` does."""
        place = await self.locate(partition)
        try:
            return await self.link(place.partition.leader), place
        except OSError:
            self.mark_stale(partition.topic)
            raise

    def has_one_replica(self, partition: TopicPartition) -> bool:
        """Whether a partition has a single replica, so that no other broker can lead it."""
        topic = self._topics.get(partition.topic)
        return topic is not None and len(topic.partition(partition.partition).replicas) == 1

    def mark_stale(self, topic: str) -> None:
        """The cached metadata of a topic is wrong: refresh it before the next use."""
        self._refreshed_s.pop(topic, None)

    async def refresh(self, names: Sequence[str] | None) -> dict[str, ErrorCode]:
        """Refresh the metadata of topics (None: all) from any broker. Returns errors by topic."""
        return self._update(names, await self._fetch_metadata(names))

    async def _fetch_metadata(self, names: Sequence[str] | None) -> Any:
        topics = None if names is None else [{"name": name, "topic_id": None} for name in names]
        return await self.call(
            ApiKey.METADATA,
            {
                "topics": topics,
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )

    def _update(self, names: Sequence[str] | None, answer: Any) -> dict[str, ErrorCode]:
        self.id = getattr(answer, "cluster_id", None)
        self.controller = NodeId(getattr(answer, "controller_id", NO_NODE))
        self.brokers = {b.id: b for b in (_broker_info(entity) for entity in answer.brokers)}
        errors: dict[str, ErrorCode] = {}
        found: dict[str, TopicInfo] = {}
        for entity in answer.topics:
            if entity.error_code and not entity.partitions:
                errors[entity.name] = entity.error_code
            else:
                topic = _topic_info(entity)
                found[topic.name] = _with_newest_leaders(topic, self._topics.get(topic.name))
        if names is None:
            self._all_refreshed_s = self._now_s()
        for name in [*self._topics] if names is None else names:
            if name not in found:
                self._topics.pop(name, None)
        self._topics |= found
        self._refreshed_s |= dict.fromkeys(found, self._now_s())
        return errors

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _unknown_topic_text(name: str, code: ErrorCode) -> str | None:
    if code in (UnknownTopicOrPartition.code, UnknownTopicId.code):
        return f"topic {name!r} does not exist"
    if code is ErrorCode.invalid_topic_exception:
        return f"{name!r} is not a valid topic name"
    return None


def _broker_info(entity: Any) -> BrokerInfo:
    return BrokerInfo(
        NodeId(entity.node_id), Address(entity.host, entity.port), getattr(entity, "rack", None)
    )


def _topic_info(entity: Any) -> TopicInfo:
    return TopicInfo(
        entity.name,
        getattr(entity, "topic_id", None) or NO_TOPIC_ID,
        getattr(entity, "is_internal", False),
        tuple(sorted(map(_partition_info, entity.partitions), key=lambda p: p.index)),
    )


def _partition_info(entity: Any) -> PartitionInfo:
    return PartitionInfo(
        PartitionIndex(entity.partition_index),
        NodeId(entity.leader_id),
        LeaderEpoch(getattr(entity, "leader_epoch", NO_EPOCH)),
        tuple(NodeId(node) for node in entity.replica_nodes),
        tuple(NodeId(node) for node in entity.isr_nodes),
        tuple(NodeId(node) for node in getattr(entity, "offline_replicas", ())),
    )


def _with_newest_leaders(topic: TopicInfo, before: TopicInfo | None) -> TopicInfo:
    """A broker with stale metadata may return the leader of an older epoch: keep the newer one."""
    if before is None or before.id != topic.id:
        return topic
    known = {partition.index: partition for partition in before.partitions}
    partitions = tuple(
        known[p.index]
        if p.index in known and known[p.index].leader_epoch > p.leader_epoch >= 0
        else p
        for p in topic.partitions
    )
    return TopicInfo(topic.name, topic.id, topic.is_internal, partitions)
