"""A cluster of production brokers in a simulation.

`SimCluster` has machines b1, b2, … with a broker each, and one metadata store that they share.
`SimNode` is one of them: it can be started, stopped, killed, powered off and frozen. Faults of the
network and the disks are injected into `simulation.network` and `node.machine.disk`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from suwi.broker.broker import Broker
from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.settings import ClientSettings
from suwi.env.tasks import TaskFailure
from suwi.metadata.memory import Faults, MemoryStore, MemoryView
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.ids import NodeId
from suwi.sim.incarnation import Incarnation
from suwi.sim.simulation import Machine, Simulation

PORT = 9092
DATA = "/data"


class SimNode:
    """One broker of the cluster, through all incarnations of its process."""

    def __init__(self, cluster: "SimCluster", node_id: NodeId) -> None:
        self.id = node_id
        self.name = f"b{node_id}"
        self.machine: Machine = cluster.simulation.machine(self.name)
        self.view: MemoryView | None = None
        self.broker: Broker | None = None
        """Of the incarnation that runs, or ran last."""
        self.in_service = asyncio.Event()
        """Set while its process runs and is in service."""
        self.start_failure: Exception | None = None
        self.failures: list[TaskFailure] = []
        """Why its processes stopped themselves, if any did."""
        self._cluster = cluster
        self._store_is_cut = False

    @property
    def is_running(self) -> bool:
        return self.machine.is_running

    @property
    def is_frozen(self) -> bool:
        return self.is_running and self.machine.incarnation.frozen

    # -- its process ----------------------------------------------------------------------------

    def begin(self) -> "asyncio.Task[None]":
        """Start a process; the task ends when it is in service, has failed or was killed."""
        env = self.machine.start()
        incarnation = self.machine.incarnation
        self.view = view = self.machine.call(self._cluster.store.view)
        self._cluster.views[view] = self.id
        view.faults = self._cluster.store_faults
        if self._store_is_cut:
            view.disconnect()
        config, brokers = self._cluster.config_of(self.id), len(self._cluster.nodes)
        self.broker = Broker(env, config, view, brokers_in_process=brokers)
        incarnation.on_revoke(lambda: self._ended(view))
        for callback in self._cluster.on_start:
            callback(self)
        starting = self.machine.spawn(self.broker.start(), name=f"start {incarnation.name}")
        return asyncio.create_task(self._wait_for(starting, incarnation))

    async def start(self) -> None:
        """Start a process and return when it is in service. Raises the error that prevented it."""
        await self.begin()
        if self.start_failure is not None:
            raise self.start_failure

    async def _wait_for(self, starting: "asyncio.Task[None]", incarnation: Incarnation) -> None:
        self.start_failure = None
        await asyncio.wait([starting])
        if incarnation.revoked or starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            assert self.broker is not None
            self._cluster.say(f"{incarnation.name} is in service")
            self.in_service.set()
            self.machine.spawn(
                self._end_with(self.broker, incarnation), name=f"failure of {incarnation.name}"
            )
        else:
            assert isinstance(error, Exception), error
            self._cluster.say(f"{incarnation.name} cannot start: {error!r}")
            self.start_failure = error
            self.machine.kill()

    async def _end_with(self, broker: Broker, incarnation: Incarnation) -> None:
        """End the process of a broker that has stopped itself."""
        failure = await broker.wait_failed()
        self._cluster.say(f"{incarnation.name} stopped itself: {failure}")
        self.failures.append(failure)
        self.machine.kill()

    def _ended(self, view: MemoryView) -> None:
        self.in_service.clear()
        view.kill()
        self._notify_end(lost_power=False)

    def kill(self) -> None:
        """SIGKILL: written bytes stay."""
        self.machine.kill()

    def power_off(self, *, tear: bool = True) -> None:
        """Bytes that were not synced are lost, all or some of them; peers are not notified."""
        self.machine.power_off(tear=tear)
        self._notify_end(lost_power=True)

    async def stop(self) -> bool:
        """A clean stop, as on SIGTERM; returns whether it was clean."""
        assert self.broker is not None
        incarnation = self.machine.incarnation
        stopping = self.machine.spawn(self.broker.stop(), name=f"stop {incarnation.name}")
        await asyncio.wait([stopping])
        if incarnation.revoked or stopping.cancelled():
            return False
        clean = stopping.result()
        self.kill()
        return clean

    def freeze(self) -> None:
        """SIGSTOP: the process does nothing and notices nothing; its session expires."""
        assert self.view is not None
        self.machine.freeze()
        self.view.suspend()

    def thaw(self, notices_after_s: float = 0.1) -> None:
        """SIGCONT. The process learns the state of its session only after `notices_after_s`."""
        assert self.view is not None
        view = self.view
        self.machine.thaw()
        if not self._store_is_cut:
            asyncio.get_running_loop().call_later(notices_after_s, view.reconnect)

    def has_lost_a_directory(self) -> bool:
        """Whether a data directory is offline until the broker's next start."""
        assert self.broker is not None
        return any(d.state.offline_because is not None for d in self.broker.directories)

    def _notify_end(self, *, lost_power: bool) -> None:
        for callback in self._cluster.on_end:
            callback(self, lost_power)

    # -- access to the store ---------------------------------------------------------------------

    def cut_store(self) -> None:
        """The store is unreachable, for this incarnation and the next ones, until `heal_store`."""
        self._store_is_cut = True
        if self.view is not None:
            self.view.disconnect()

    def heal_store(self) -> None:
        self._store_is_cut = False
        if self.view is not None and not self.is_frozen:
            self.view.reconnect()


class SimCluster:
    def __init__(
        self,
        simulation: Simulation,
        *,
        brokers: int = 3,
        session_timeout_s: float = 6.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` apply to all brokers."""
        self.simulation = simulation
        self.store = MemoryStore(
            simulation.random.stream("store"), session_timeout_s=session_timeout_s
        )
        self.store_faults = self.store.view().faults
        """Shared by the views of all brokers."""
        self.views: dict[MemoryView, NodeId] = {}
        """The broker that each view of the store belongs to."""
        self.on_start: list[Callable[[SimNode], None]] = []
        self.on_end: list[Callable[[SimNode, bool], None]] = []
        """Called when a process ends, and again, with True, when its machine has lost power."""
        self.timeline: deque[str] = deque(maxlen=400)
        """The faults and events of the run with their times, for error reports."""
        self._kept: list[MemoryView] = []
        """Views whose sessions last as long as the store is away."""
        self._settings = dict(settings or {})
        self.nodes = {NodeId(n): SimNode(self, NodeId(n)) for n in range(1, brokers + 1)}

    def __getitem__(self, number: int) -> SimNode:
        return self.nodes[NodeId(number)]

    def say(self, what: str) -> None:
        self.timeline.append(f"{self.simulation.loop.time():10.4f} {what}")

    def config_of(self, node_id: NodeId) -> BrokerConfig:
        properties = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://b{node_id}:{PORT}",
            "log.dirs": DATA,
            "zookeeper.session.timeout.ms": str(round(self.store.session_timeout_s * 1000)),
            "log.scrubber.io.max.bytes.per.second": "0",
            **self._settings,
        }
        return parse_broker_config(properties).config

    async def start(self) -> None:
        """Start all brokers and wait until they are in service."""
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    def set_store_faults(self, faults: Faults) -> None:
        for name in Faults.__slots__:
            setattr(self.store_faults, name, getattr(faults, name))

    def begin_store_outage(self) -> None:
        """The store is away, as when ZooKeeper has no majority: it ends no session meanwhile."""
        for node in self.nodes.values():
            node.cut_store()
            if node.view is not None:
                node.view.keep_session()
                self._kept.append(node.view)

    def end_store_outage(self) -> None:
        """Sessions of processes that have ended meanwhile, or are frozen, time out from now on."""
        for node in self.nodes.values():
            node.heal_store()
        for view in self._kept:
            view.stop_keeping_session()
        self._kept.clear()

    def client(self, name: str, settings: ClientSettings | None = None) -> Cluster:
        """A client on the calling machine."""
        addresses = [Address(node.name, PORT) for node in self.nodes.values()]
        random = self.simulation.workload.stream(f"client/{name}")
        return Cluster(addresses, random=random, settings=settings)
