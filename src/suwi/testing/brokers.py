"""The brokers of a test cluster: start and stop, faults, and waiting for their effects.

Everything here runs on the cluster's event loop, in its own thread. Tests use `Cluster` and
`AsyncCluster`, which have the methods that tests may call, with the signatures and docstrings they
have here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TypeVar

from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient
from suwi.env import SystemRandom
from suwi.env.tasks import TaskFailure, Tasks
from suwi.group.classic_group import session_timer
from suwi.group.consumer_group import ConsumerGroup, consumer_session_timer
from suwi.group.group_coordinator import OFFSETS_TOPIC
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.metadata.cluster_events import Event, events
from suwi.metadata.embedded import EmbeddedStore
from suwi.metadata.image import ClusterImage, PartitionState
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.model.errors import (
    BrokerError,
    NotEnoughReplicas,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_OFFSET, NodeId, PartitionIndex, TopicPartition
from suwi.replica.description import ReplicaState, describe
from suwi.replica.leader_state import Stable
from suwi.replica.partition import Partition
from suwi.testing.loop import ClusterLoop
from suwi.testing.node import BrokerNode
from suwi.testing.snapshot import STORE, Point, resume, take

_POLL_S = 0.005
_REPLICATION_FACTOR_MAX = 3

TIMEOUT_S = 60.0
"""The default timeout of calls that wait."""

T = TypeVar("T")


def texts(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Settings as texts, in Kafka's notation."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (settings or {}).items()
    }


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
        point: Point | None = None,
        keep_members: bool = False,
        first_port: int = 0,
    ) -> None:
        """`point`: of the cluster that was copied to `directory`. `keep_members`: of its groups.
        `first_port`: that of the first broker, the others have the next ones; 0: any."""
        self._loop = loop
        self._first_port = first_port
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
        self._point = point
        self._keep_members = keep_members
        self._store: EmbeddedStore | None = None
        self._follower: MetadataFollower | None = None
        self._nodes: dict[int, BrokerNode] = {}
        self._image = ClusterImage()

    # -- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        self._store = store = await EmbeddedStore.open(
            f"{self._directory}/{STORE}", session_timeout_s=self._session_timeout_s
        )
        self._follower = MetadataFollower(store.view(), Tasks(self._raise_failure))
        self._follower.subscribe(self._apply_image)
        await self._follower.start()
        boot_ids = self._point.boot_ids if self._point is not None else {}
        self._nodes = {
            n: BrokerNode(
                n,
                self._loop,
                store,
                f"{self._directory}/{n}",
                self._settings,
                self._count,
                boot_ids.get(n, ""),
                self._first_port and self._first_port + n - 1,
            )
            for n in range(1, self._count + 1)
        }
        if self._point is None:
            await self._start(self._nodes.values())
            return
        await resume(store, [self._nodes[n] for n in self._point.running], self._start)
        if not self._keep_members:
            await self._drop_members()

    async def _start(self, nodes: Iterable[BrokerNode]) -> None:
        starting = [node.start() for node in nodes]
        for problem in await asyncio.gather(*starting, return_exceptions=True):
            if problem is not None:
                raise problem

    async def _drop_members(self) -> None:
        """End the sessions of all members of groups: their clients use another cluster."""

        def remaining() -> list[str]:
            topic = self._image.topics.get(OFFSETS_TOPIC)
            led = enumerate(topic.partitions if topic is not None else ())
            return [
                f"{OFFSETS_TOPIC}-{index}"
                for index, state in led
                if state.leader in self.running and self._end_sessions(state.leader, index)
            ]

        await _until(
            lambda: True if not remaining() else None,
            lambda: f"the groups of {', '.join(remaining())} still have members",
            TIMEOUT_S,
        )

    def _end_sessions(self, leader: int, index: int) -> bool:
        """End the sessions of all members of a shard. Returns whether there may be some left."""
        node = self.node(leader)
        assert node.broker is not None
        try:
            shard = node.broker.groups.runtime.shard_at(index)
            shard.partition.check_enough_replicas()
        except NotEnoughReplicas:
            return False  # Nothing can be written: they stay until their sessions time out.
        except BrokerError:
            return True  # It is being loaded.
        groups = [shard.machine.group(group_id) for group_id in shard.machine.groups.ids()]
        sessions = [
            timer(group.group_id, member_id)
            for group in groups
            if group is not None
            for timer in [
                consumer_session_timer if isinstance(group, ConsumerGroup) else session_timer
            ]
            for member_id in group.members
        ]
        for session in sessions:
            node.machine.call(shard.tell, GroupCoordinatorShard.expired, session)
        return bool(sessions)

    async def snapshot(self, directory: str) -> Point:
        """Copy the files of the brokers and of the metadata store, as they are at one moment."""
        assert self._store is not None

        def copy() -> Point:
            take(self._nodes.values(), directory)
            boot_ids = {n: node.drive.boot_id for n, node in self._nodes.items()}
            return Point(
                self._count, self._settings, self._session_timeout_s, self.running, boot_ids
            )

        return await self._store.copy_to(f"{directory}/{STORE}", copy)

    def _raise_failure(self, failure: TaskFailure) -> None:
        raise failure.error

    def _apply_image(self, _old: ClusterImage, new: ClusterImage) -> None:
        self._image = new

    async def stop(self, *, cleanly: bool) -> None:
        """Stop everything; `cleanly`: with a clean shutdown, so that no start needs recovery."""
        async with AsyncExitStack() as ending:  # in reverse order
            if self._store is not None:
                ending.push_async_callback(self._store.close)
            if self._follower is not None:
                ending.push_async_callback(self._follower.stop)
            for node in self._nodes.values():
                ending.callback(node.end)
                self._loop.network.power_on(node.name)  # It closes what a power loss left open.
            self._loop.network.heal()
            if cleanly:
                await self._stop_cleanly()

    async def _stop_cleanly(self) -> None:
        for node in self._nodes.values():
            if node.is_frozen:
                node.thaw()
        running = [node for node in self._nodes.values() if node.is_running]
        stopping = [node.stop([each.id for each in running]) for node in running]
        for result in await asyncio.gather(*stopping, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    # -- state ---------------------------------------------------------------------------------

    def node(self, number: int) -> BrokerNode:
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
        """The active controller; None while there is none."""
        found = self._image.controller
        return None if found is None else int(found)

    async def replicas(self, topic: str, partition: int = 0) -> dict[int, ReplicaState]:
        """The state of each replica, by broker, without brokers that are paused or not running."""
        found = {}
        for number in self.running:
            replica = self._replica(number, topic, partition)
            if replica is not None:
                found[number] = describe(replica, number, self._loop.time())
        return found

    async def events(self) -> list[Event]:
        """The recorded events: elections that lost records, and which ones."""
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
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        """Create a topic and wait until it can be used. Returns its name."""

        async def create(admin: Admin) -> None:
            await admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor or -1,
                configs=texts(configs),
            )

        await self._administer(create, TopicAlreadyExists, timeout_s)
        for partition in range(partitions):
            await self.wait_leader(name, partition, timeout_s=timeout_s)
        return name

    async def delete_topic(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
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

    async def kill(self, broker: int) -> None:
        """As `kill -9`: connections are reset, written bytes stay, there is no clean shutdown."""
        self.node(broker).kill()

    async def stop_broker(self, broker: int) -> None:
        """As SIGTERM: a controlled shutdown; leadership moves, everything is flushed to disk."""
        await self.node(broker).stop()

    async def restart(self, broker: int) -> None:
        """Start a broker on its old port; if it is running, it is stopped first."""
        node = self.node(broker)
        if node.is_frozen:
            node.thaw()
        if node.is_running:
            await node.stop()
        await node.start()

    async def power_loss(self, broker: int) -> None:
        """The machine loses power: unsynced bytes are lost, and peers get no disconnect."""
        self.node(broker).power_off()

    async def pause(self, broker: int) -> None:
        """As SIGSTOP: nothing is received or sent. It is failed after the session timeout."""
        self.node(broker).freeze()

    async def resume(self, broker: int) -> None:
        """As SIGCONT."""
        self.node(broker).thaw()

    async def expire_session(self, broker: int) -> None:
        """The metadata store expires this broker's session."""
        await self.node(broker).expire_session()

    async def partition(self, *sides: Iterable[int]) -> None:
        """Brokers on different sides cannot reach each other; clients still reach all brokers."""
        self._loop.network.partition(*[[self.node(n).name for n in side] for side in sides])

    async def cut(self, source: int, target: int) -> None:
        """Nothing that one broker sends reaches the other; the other direction stays open."""
        self._loop.network.cut(self.node(source).name, self.node(target).name)

    async def slow(self, broker: int, ms: float) -> None:
        """Delay all traffic between this broker and other brokers by `ms` in each direction."""
        self._loop.network.slow(self.node(broker).name, ms)

    async def heal(self) -> None:
        """End all `partition` and `slow` faults."""
        for node in self._nodes.values():
            self._loop.network.slow(node.name, 0)
        self._loop.network.heal()

    async def fill_disk(self, broker: int) -> None:
        """The disk of this broker is full: no file can grow."""
        self.node(broker).drive.is_full = True

    async def free_disk(self, broker: int) -> None:
        self.node(broker).drive.is_full = False

    # -- waiting -------------------------------------------------------------------------------

    async def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        broker: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        """Wait until the partition has a leader, `broker` if given, that knows it leads. Returns
        the leader."""

        def leader() -> int | None:
            state = self._state(topic, partition)
            if state is None or broker not in (None, state.leader):
                return None
            return int(state.leader) if self._leads(topic, partition, state) else None

        wanted = "a leader" if broker is None else f"leader {broker}"
        return await _until(leader, lambda: self._unmet(topic, partition, wanted), timeout_s)

    async def wait_isr(
        self,
        topic: str,
        partition: int,
        brokers: Collection[int],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait until exactly these replicas are in sync, for the controller and the leader."""
        wanted = set(brokers)

        def agrees() -> bool | None:
            state = self._state(topic, partition)
            if state is None or set(state.isr) != wanted or state.leader not in self.running:
                return None
            replica = self._replica(state.leader, topic, partition)
            leader_state = None if replica is None else replica.leader_state
            return True if leader_state is not None and leader_state.members == wanted else None

        text = f"in-sync replicas {sorted(wanted)}"
        await _until(agrees, lambda: self._unmet(topic, partition, text), timeout_s)

    async def wait_event(self, kind: str, *, timeout_s: float = TIMEOUT_S) -> Event:
        """Wait for an event of this kind. Returns the first one."""

        def look() -> Event | None:
            return next((event for event in events(self._image) if event.kind == kind), None)

        return await _until(look, lambda: f"no event {kind!r}", timeout_s)

    async def wait_until_healthy(self, *, timeout_s: float = TIMEOUT_S) -> None:
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
                    elif not _is_followed(self._replica(state.leader, name, index), state):
                        found.append(self._unmet(name, index, "a fetch of every follower"))
            return found

        await _until(
            lambda: True if not problems() else None, lambda: "; ".join(problems()), timeout_s
        )

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


def _is_followed(leader: Partition | None, state: PartitionState) -> bool:
    """Whether all followers have fetched, and the leader wants no other ISR. That of a new
    partition has them from the start, and loses those that do not fetch within
    `replica.lag.time.max.ms`."""
    if leader is None or not leader.is_open or leader.leader_state is None:
        return True  # It has not been used yet.
    followers = leader.leader_state.followers.values()
    return leader.leader_state.isr == Stable(frozenset(state.isr)) and all(
        follower.end_offset != NO_OFFSET for follower in followers
    )


async def _until(look: Callable[[], T | None], explain: Callable[[], str], timeout_s: float) -> T:
    """Poll `look` until it returns a value. Polling needs no change in the brokers."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        found = look()
        if found is not None:
            return found
        if loop.time() > deadline_s:
            raise NotInTime(f"{explain()} (after {timeout_s:g} s)")
        await asyncio.sleep(_POLL_S)
