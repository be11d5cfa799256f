"""The brokers of a test cluster: start and stop, faults, and waiting for their effects.

Everything here runs on the cluster's event loop, in its own thread; tests use `Cluster` and
`AsyncCluster`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient
from suwi.controller.events import Event, events
from suwi.env import SystemRandom
from suwi.env.tasks import TaskFailure, Tasks
from suwi.metadata.embedded import EmbeddedStore
from suwi.metadata.image import ClusterImage, PartitionState
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.model.errors import BrokerError, TopicAlreadyExists, UnknownTopicOrPartition
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.replica.description import ReplicaState, describe
from suwi.replica.partition import Partition
from suwi.testing.loop import ClusterLoop
from suwi.testing.node import Node

_POLL_S = 0.005
_REPLICATION_FACTOR_MAX = 3

T = TypeVar("T")


class NotInTime(TimeoutError):
    """The awaited condition was not met in time; the text describes the current state."""


class Brokers:
    def __init__(
        self,
        loop: ClusterLoop,
        directory: str,
        brokers: int,
        settings: Mapping[str, str],
        session_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._count = brokers
        self._settings = {
            "default.replication.factor": str(min(brokers, _REPLICATION_FACTOR_MAX)),
            # Short, because tests wait for it.
            "replica.lag.time.max.ms": "2000",
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.session.timeout.ms": "6000",
            "group.consumer.min.session.timeout.ms": "6000",
            "group.consumer.heartbeat.interval.ms": "300",
            "group.consumer.min.heartbeat.interval.ms": "300",
            "zookeeper.session.timeout.ms": str(max(1000, round(session_timeout_s * 1000))),
            **settings,
        }
        self._session_timeout_s = session_timeout_s
        self._store: EmbeddedStore | None = None
        self._follower: MetadataFollower | None = None
        self._nodes: dict[int, Node] = {}
        self._image = ClusterImage()

    # -- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        self._store = store = await EmbeddedStore.open(
            f"{self._directory}/suwi-metadata.sqlite", session_timeout_s=self._session_timeout_s
        )
        self._follower = MetadataFollower(store.view(), Tasks(self._raise_failure))
        self._follower.subscribe(self._apply_image)
        await self._follower.start()
        self._nodes = {
            n: Node(n, self._loop, store, f"{self._directory}/{n}", self._settings, self._count)
            for n in range(1, self._count + 1)
        }
        starting = [node.start() for node in self._nodes.values()]
        for problem in await asyncio.gather(*starting, return_exceptions=True):
            if problem is not None:
                raise problem

    def _raise_failure(self, failure: TaskFailure) -> None:
        raise failure.error

    def _apply_image(self, _old: ClusterImage, new: ClusterImage) -> None:
        self._image = new

    async def stop(self, *, cleanly: bool) -> None:
        """Stop everything; `cleanly`: with a clean shutdown, so that no start needs recovery."""
        self._loop.network.heal()
        if cleanly:
            for node in self._nodes.values():
                if node.is_frozen:
                    await node.thaw()
            await asyncio.gather(*(n.stop() for n in self._nodes.values() if n.is_running))
        for node in self._nodes.values():
            await node.end()
        if self._follower is not None:
            await self._follower.stop()
        if self._store is not None:
            await self._store.close()

    # -- state ---------------------------------------------------------------------------------

    def node(self, number: int) -> Node:
        found = self._nodes.get(number)
        if found is None:
            raise ValueError(f"there is no broker {number}: they are 1 to {self._count}")
        return found

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(1, self._count + 1))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes.values())

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.node(number).port}"

    @property
    def running(self) -> list[int]:
        """The brokers that run and are not paused."""
        return [n for n, node in self._nodes.items() if node.is_running and not node.is_frozen]

    async def controller(self) -> int | None:
        found = self._image.controller
        return None if found is None else int(found)

    async def replicas(self, topic: str, partition: int) -> dict[int, ReplicaState]:
        """The state of each replica on a running broker."""
        found = {}
        for number in self.running:
            replica = self._replica(number, topic, partition)
            if replica is not None:
                found[number] = describe(replica, number, self._loop.time())
        return found

    async def events(self) -> list[Event]:
        """The recorded events: unclean elections and lost records."""
        return events(self._image)

    def _replica(self, number: int, topic: str, partition: int) -> Partition | None:
        broker = self.node(number).broker
        assert broker is not None
        for replica in broker.replicas:
            if replica.partition == (topic, partition):
                return replica
        return None

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        timeout_s: float,
    ) -> str:
        """Wait until every partition has a leader. Returns the name."""

        async def create(admin: Admin) -> None:
            await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor or -1,
                configs=dict(configs),
            )

        await self._administer(create, TopicAlreadyExists, timeout_s)
        for partition in range(partitions):
            await self.wait_leader(name, partition, None, timeout_s)
        return name

    async def delete_topic(self, name: str, timeout_s: float) -> None:
        await self._administer(
            lambda admin: admin.delete_topic(name), UnknownTopicOrPartition, timeout_s
        )

    async def _administer(
        self,
        act: Callable[[Admin], Awaitable[None]],
        is_done: type[BrokerError],
        timeout_s: float,
    ) -> None:
        """Retry until a controller succeeds. A failed one may have succeeded before: `is_done`."""
        may_be_done = False
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    async with self._client() as client:
                        return await act(Admin(client))
                except is_done:
                    if may_be_done:
                        return
                    raise
                except (BrokerError, OSError) as error:
                    if not is_transient(error):
                        raise
                    may_be_done = True
                await asyncio.sleep(_POLL_S)

    async def topics(self) -> list[str]:
        return sorted(self._image.topics)

    def _client(self) -> Cluster:
        addresses = [Address("127.0.0.1", self.node(n).port) for n in self.running]
        return Cluster(addresses, random=SystemRandom())

    # -- faults --------------------------------------------------------------------------------

    async def kill(self, number: int) -> None:
        await self.node(number).kill()

    async def stop_broker(self, number: int) -> None:
        await self.node(number).stop()

    async def restart(self, number: int) -> None:
        node = self.node(number)
        if node.is_frozen:
            await node.thaw()
        if node.is_running:
            await node.stop()
        await node.start()

    async def power_loss(self, number: int) -> None:
        await self.node(number).lose_power()

    async def pause(self, number: int) -> None:
        await self.node(number).freeze()

    async def resume(self, number: int) -> None:
        await self.node(number).thaw()

    async def expire_session(self, number: int) -> None:
        await self.node(number).expire_session()

    async def partition(self, sides: Iterable[Iterable[int]]) -> None:
        nodes_by_side = [{int(self.node(number).id) for number in side} for side in sides]
        for index, side in enumerate(nodes_by_side):
            for other in nodes_by_side[index + 1 :]:
                self._loop.network.cut(side, other)

    async def slow(self, number: int, ms: float) -> None:
        self._loop.network.slow(self.node(number).id, ms / 1000)

    async def heal(self) -> None:
        """Remove all partitions and delays."""
        for number in self._nodes:
            self._loop.network.slow(number, 0.0)
        self._loop.network.heal()

    async def fill_disk(self, number: int) -> None:
        self.node(number).drive.is_full = True

    async def free_disk(self, number: int) -> None:
        self.node(number).drive.is_full = False

    # -- waiting -------------------------------------------------------------------------------

    async def wait_leader(
        self, topic: str, partition: int, node: int | None, timeout_s: float
    ) -> int:
        """The leader, once the broker itself has become leader."""

        def leader() -> int | None:
            state = self._state(topic, partition)
            if state is None or node not in (None, state.leader):
                return None
            return int(state.leader) if self._leads(topic, partition, state) else None

        wanted = "a leader" if node is None else f"leader {node}"
        return await self._until(leader, lambda: self._unmet(topic, partition, wanted), timeout_s)

    async def wait_isr(
        self, topic: str, partition: int, nodes: Collection[int], timeout_s: float
    ) -> None:
        """Wait until both the controller and the leader have exactly this ISR."""
        wanted = set(nodes)

        def agrees() -> bool | None:
            state = self._state(topic, partition)
            if state is None or set(state.isr) != wanted or state.leader not in self.running:
                return None
            replica = self._replica(state.leader, topic, partition)
            leader_state = None if replica is None else replica.leader_state
            return True if leader_state is not None and leader_state.members == wanted else None

        text = f"in-sync replicas {sorted(wanted)}"
        await self._until(agrees, lambda: self._unmet(topic, partition, text), timeout_s)

    async def wait_event(self, kind: str, timeout_s: float) -> Event:
        """The first event of a kind."""

        def look() -> Event | None:
            return next((event for event in events(self._image) if event.kind == kind), None)

        return await self._until(look, lambda: f"no event {kind!r}", timeout_s)

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Wait until all brokers run, and all partitions have a leader and all replicas in sync."""

        def problems() -> list[str]:
            found = [f"broker {n} is not in service" for n in self._nodes if not self._serves(n)]
            if self._image.controller not in self.running:
                found.append("no controller")
            for name, topic in self._image.topics.items():
                for index, state in enumerate(topic.partitions):
                    if set(state.isr) != set(state.replicas):
                        found.append(self._unmet(name, index, "all replicas in sync"))
                    elif not self._leads(name, index, state):
                        found.append(self._unmet(name, index, "a leader"))
            return found

        await self._until(
            lambda: True if not problems() else None, lambda: "; ".join(problems()), timeout_s
        )

    async def _until(
        self, look: Callable[[], T | None], explain: Callable[[], str], timeout_s: float
    ) -> T:
        """Poll `look` until it returns a value. Polling needs no change in the brokers."""
        deadline_s = self._loop.time() + timeout_s
        while True:
            found = look()
            if found is not None:
                return found
            if self._loop.time() > deadline_s:
                raise NotInTime(f"{explain()} (after {timeout_s:g} s)")
            await asyncio.sleep(_POLL_S)

    def _serves(self, number: int) -> bool:
        """Whether a broker runs and is registered with its current broker epoch."""
        broker = self.node(number).broker
        registration = self._image.unfenced_brokers.get(NodeId(number))
        return (
            number in self.running
            and broker is not None
            and registration is not None
            and registration.epoch == broker.replicas.broker_epoch
        )

    def _leads(self, topic: str, partition: int, state: PartitionState) -> bool:
        if state.leader not in self.running:
            return False
        replica = self._replica(state.leader, topic, partition)
        return (
            replica is not None and replica.is_leader and replica.leader_epoch == state.leader_epoch
        )

    def _state(self, topic: str, partition: int) -> PartitionState | None:
        return self._image.partition(TopicPartition(topic, PartitionIndex(partition)))

    def _unmet(self, topic: str, partition: int, wanted: str) -> str:
        state = self._state(topic, partition)
        if state is None:
            return f"{topic}-{partition} does not exist, {wanted} awaited"
        return (
            f"{topic}-{partition} has leader {state.leader} (epoch {state.leader_epoch}) and "
            f"in-sync replicas {list(state.isr)} of {list(state.replicas)}, {wanted} awaited; "
            f"brokers running: {self.running}"
        )
