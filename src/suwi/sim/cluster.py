"""A cluster of production brokers in a simulation.

`SimCluster` has machines b1, b2, … with a broker each, and one metadata store that they share.
`SimNode` is one of them. Faults of the network and the disks are injected into
`simulation.network` and `node.machine.disk`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.settings import ClientSettings
from suwi.metadata.memory import Faults, MemoryStore, MemoryView
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.ids import NodeId
from suwi.sim.disk import SimDisk
from suwi.sim.node import Node
from suwi.sim.simulation import Simulation

PORT = 9092
DATA = "/data"


class SimNode(Node[MemoryView, SimDisk]):
    def __init__(self, cluster: "SimCluster", node_id: NodeId, brokers: int) -> None:
        machine = cluster.simulation.machine(f"b{node_id}")
        super().__init__(
            node_id, machine, cluster.store.view, lambda: cluster.config_of(node_id), brokers
        )
        self._cluster = cluster
        self._store_is_cut = False

    def say(self, what: str) -> None:
        self._cluster.say(what)

    def _has_new_process(self) -> None:
        assert self.view is not None
        self._cluster.views[self.view] = self.id
        self.view.faults = self._cluster.store_faults
        if self._store_is_cut:
            self.view.disconnect()
        for callback in self._cluster.on_start:
            callback(self)

    def _ended(self, view: MemoryView) -> None:
        super()._ended(view)
        self._notify_end(lost_power=False)

    def power_off(self, *, tear: bool = True) -> None:
        super().power_off(tear=tear)
        self._notify_end(lost_power=True)

    def _notify_end(self, *, lost_power: bool) -> None:
        for callback in self._cluster.on_end:
            callback(self, lost_power)

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
        self.on_say: list[Callable[[str], None]] = []
        self.timeline: deque[str] = deque(maxlen=400)
        """The faults and events of the run with their times, for error reports."""
        self._kept: list[MemoryView] = []
        """Views whose sessions last as long as the store is away."""
        self._settings = dict(settings or {})
        self.nodes = {NodeId(n): SimNode(self, NodeId(n), brokers) for n in range(1, brokers + 1)}

    def __getitem__(self, number: int) -> SimNode:
        return self.nodes[NodeId(number)]

    def say(self, what: str) -> None:
        self.timeline.append(f"{self.simulation.loop.time():10.4f} {what}")
        for callback in self.on_say:
            callback(what)

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
