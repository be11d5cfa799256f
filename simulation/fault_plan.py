"""The faults of a simulated cluster, drawn from the seed: which, when and where.

`FaultPlan.run` injects faults for a while, `heal` removes all of them. Each run draws the kinds of
faults it has (a run with few kinds reaches deeper states than one with all of them), and chooses
leaders and the controller more often than other brokers.
Invariant: power losses and damaged logs stay within the budget in which no acknowledged record may
be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias

from simulation.task_failures import UNITS, TaskFaults
from suwi.metadata.memory import Faults
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.cluster import SimCluster, SimNode
from suwi.sim.invariant_monitor import InvariantMonitor
from suwi.sim.random import SimRandom

FAIL_TASK = "fail task"
DAMAGE_LOG = "damage log"
UNCLEAN_ELECTION = "unclean election"
_START_AGAIN_S = 0.5
_WANTED_CHANCE = 0.5
_AT_ONCE_MAX = 3
"""How many faults there are at the same time, at most."""

FaultScript: TypeAlias = Callable[["FaultPlan"], Coroutine[Any, Any, None]]


class FaultPlan:
    def __init__(
        self,
        cluster: SimCluster,
        monitor: InvariantMonitor,
        random: SimRandom,
        scripts: Mapping[str, FaultScript],
        more_scripts: Mapping[str, FaultScript] = MappingProxyType({}),
        *,
        kinds: Sequence[str] | None = None,
        wanted: Sequence[str] = (),
        tasks: Sequence[str] = tuple(UNITS),
        power_losses: str = "budget",
        clients: Sequence[str] = ("c1", "c2"),
        damages_logs: bool = False,
    ) -> None:
        """`scripts` are the kinds of faults that are drawn, by name; `more_scripts` are others that
        may be `wanted`: every other fault is one of those. `tasks` may fail. `power_losses`:
        "budget", or "any" if every message is synced before it is acknowledged. `clients` are the
        machines that clients run on. `damages_logs`: they are found and replaced."""
        self.damages_logs = damages_logs
        self.cluster = cluster
        self.monitor = monitor
        self.random = random
        self.network = cluster.simulation.network
        self.session_s = cluster.store.session_timeout_s
        self._power_losses = power_losses
        self.clients = list(clients)
        self._job_delay_s_max = cluster.simulation.loop.job_delay_s_max
        self._busy: set[NodeId] = set()
        """Nodes to whose process a fault is happening."""
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._without_power: set[NodeId] = set()
        """Nodes that lost power and are not back in every ISR."""
        self.damaged: dict[NodeId, Callable[[], bool]] = {}
        """Whose log has been damaged, with a function that says whether it still is."""
        self.is_healing = False
        self.tasks = list(tasks)
        self._scripts = {**scripts, **more_scripts}
        self._drawn_from = list(scripts)
        self._wanted = list(wanted)
        self._kinds = list(kinds) if kinds is not None else self._draw_kinds()
        if FAIL_TASK in self._kinds:
            self.task_faults = TaskFaults(cluster)

    def _draw_kinds(self) -> list[str]:
        share = self.random.choice((0.15, 0.4, 0.8))
        return [kind for kind in self._drawn_from if self.random.chance(share)] or ["kill"]

    # -- duration and choice ---------------------------------------------------------------------

    async def run(self, duration_s: float, pause_s_max: float = 1.5) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        if DAMAGE_LOG in self._wanted:  # Before the others, while all replicas are in sync.
            await self._scripts[DAMAGE_LOG](self)
        while loop.time() < end_s:
            await asyncio.sleep(self.random.uniform(0, pause_s_max))
            if len(self._under_way) < _AT_ONCE_MAX:
                for kind in self._next_kinds():
                    self._begin(kind)

    def _begin(self, kind: str) -> None:
        task = asyncio.create_task(self._scripts[kind](self), name=kind)
        self._under_way[task] = None
        task.add_done_callback(lambda task: self._under_way.pop(task, None))

    def meet(self, kind: str) -> None:
        """Called by a fault of this kind when another one that is wanted may meet it."""
        others = [other for other in self._wanted if other != kind]
        if others and self.random.chance(_WANTED_CHANCE):
            self._begin(self.random.choice(others))

    def _next_kinds(self) -> list[str]:
        """One, or two of those that are wanted: they are to meet."""
        if not self._wanted or not self.random.chance(_WANTED_CHANCE):
            return [self.random.choice(self._kinds)]
        wanted = list(self._wanted)
        self.random.shuffle(wanted)
        return wanted[:2]

    async def heal(self) -> None:
        """Remove all faults, and return when every broker is in service."""
        self.say("heal")
        self.is_healing = True
        self.network.heal()
        for host in [*(node.name for node in self.cluster.nodes.values()), *self.clients]:
            self.network.slow(host, 0)
        self.cluster.set_store_faults(Faults())
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        for node in self.cluster.nodes.values():
            node.heal_store()
            disk = node.machine.disk
            disk.faults.clear()
            disk.free()
            if node.is_running and node.has_lost_a_directory():
                self.say(f"restart {node.name}, whose data directory is offline")
                node.kill()
        await asyncio.gather(*(self._bring_back(node) for node in self.cluster.nodes.values()))

    def say(self, what: str) -> None:
        self.cluster.say(f"* {what}")

    async def for_a_while(self) -> None:
        """Up to a moment, about the session timeout, or much longer."""
        longest = self.random.choice((0.05, 0.5, 2.0, 1.5 * self.session_s, 3 * self.session_s))
        await self.pause(self.random.uniform(0, longest))

    async def pause(self, duration_s: float) -> None:
        step_s = 0.25
        while duration_s > 0 and not self.is_healing:
            await asyncio.sleep(min(step_s, duration_s))
            duration_s -= step_s

    def pick(self) -> SimNode | None:
        """A running broker without a process fault; leaders and the controller more often."""
        free = [n for n in self.cluster.nodes.values() if n.is_running and n.id not in self._busy]
        if not free:
            return None
        truth = self.monitor.truth
        draw = self.random.random()
        wanted: NodeId | None = None
        if draw < 0.5 and truth.topics:
            topic = self.random.choice(list(truth.topics.values()))
            wanted = self.random.choice(topic.partitions).leader
        elif draw < 0.65:
            wanted = self.controller()
        return next((n for n in free if n.id == wanted), None) or self.random.choice(free)

    async def _bring_back(self, node: SimNode) -> None:
        """Start it as often as needed until it is in service."""
        while not node.in_service.is_set():
            if node.is_frozen:
                node.thaw()
            if not node.is_running:
                await node.begin()
                if node.start_failure is not None:
                    await asyncio.sleep(_START_AGAIN_S)
            else:
                await asyncio.sleep(_START_AGAIN_S)

    async def alone(self, act: Callable[[SimNode], Awaitable[None]]) -> None:
        """Do something to one broker's process while no other fault of a process may choose it."""
        node = self.pick()
        if node is not None:
            with self.taking(node):
                await act(node)

    @contextmanager
    def taking(self, *nodes: SimNode) -> Iterator[None]:
        """Reserve these processes: no other fault may choose them."""
        self._busy.update(node.id for node in nodes)
        try:
            yield
        finally:
            self._busy.difference_update(node.id for node in nodes)

    def free(self, node_id: NodeId) -> SimNode | None:
        """This broker, if it runs and no fault of its process is under way."""
        node = self.cluster.nodes[node_id]
        return node if node.is_running and node_id not in self._busy else None

    def controller(self) -> NodeId | None:
        controller = self.cluster.store.ledger.controller
        return controller.node_id if controller else None

    # -- processes -------------------------------------------------------------------------------

    async def kill(self) -> None:
        await self.alone(self._kill)

    async def _kill(self, node: SimNode) -> None:
        self.say(f"kill {node.name}")
        node.kill()
        await self.for_a_while()
        self.say(f"start {node.name}")
        await self.start(node)

    async def start(self, node: SimNode) -> None:
        """Start its next incarnation, with retries, and do not wait long for it."""
        for _ in range(5):
            if node.is_running or self.is_healing:
                return
            await asyncio.wait([node.begin()], timeout=self.session_s)
            await self.pause(_START_AGAIN_S)

    async def crash_in_a_write(self) -> None:
        await self.alone(self._crash_in_a_write)

    async def _crash_in_a_write(self, node: SimNode) -> None:
        self.say(f"crash {node.name} in a write")
        node.machine.disk.faults.crash_after(self.random.below(20))
        await self.pause(2.0)
        if node.is_running:
            node.kill()
        node.machine.disk.faults.clear()
        await self.for_a_while()
        self.say(f"start {node.name}")
        await self.start(node)

    async def stop(self) -> None:
        await self.alone(self._stop)

    async def _stop(self, node: SimNode) -> None:
        if not node.in_service.is_set():
            return
        self.say(f"stop {node.name}")
        stopping = asyncio.ensure_future(node.stop())
        await asyncio.wait([stopping], timeout=2 * self.session_s)
        if node.is_running:
            node.kill()
        await asyncio.wait([stopping])
        await self.for_a_while()
        self.say(f"start {node.name}")
        await self.start(node)

    async def lose_power(self) -> None:
        await self.alone(self._lose_power)

    async def _lose_power(self, node: SimNode) -> None:
        if not self.may_lose_power(node):
            return
        self.lose_power_of(node)
        await self.for_a_while()
        self.say(f"start {node.name}")
        await self.start(node)

    def lose_power_of(self, node: SimNode) -> None:
        self.say(f"power off {node.name}")
        self._without_power.add(node.id)
        node.power_off()

    def may_lose_power(self, node: SimNode) -> bool:
        """Whether the budget allows it: at most min.insync.replicas - 1 replicas of a partition
        lose power before the others are back in sync, and one is left that is not damaged."""
        damaged = self.damages_left()
        if self._power_losses == "any" and not damaged:
            return True
        world = self.monitor.world
        held = {
            log: state
            for log, state in world.states.items()
            if node.id in state.isr or node.id in state.elr
        }
        for log, state in held.items():
            if min(world.rules_of(log).min_insync_replicas, state.replication_factor) < 2:
                return False
            if set(state.isr) != set(state.replicas) or state.leader == NO_NODE:
                return False
            if set(state.isr) <= {node.id, *damaged}:
                return False
        # A replica through which nothing is committed has nothing to lose.
        return not held or self.all_have_power()

    def damages_left(self) -> list[NodeId]:
        self.damaged = {node: is_left for node, is_left in self.damaged.items() if is_left()}
        return list(self.damaged)

    def all_have_power(self) -> bool:
        """Whether no replica may still miss records after a power loss."""
        return all(self._is_back(node) for node in self._without_power)

    def _is_back(self, node_id: NodeId) -> bool:
        """Whether it is in sync again, in its new incarnation, so that nothing is missing."""
        registered = self.monitor.truth.registered_brokers.get(node_id)
        held = self.cluster.store.ledger.registrations.get(f"brokers/{node_id}")
        return (
            registered is not None
            and held is not None
            and registered.epoch == held.epoch
            and self.cluster.nodes[node_id].in_service.is_set()
            and not any(
                r.was_unclean_shutdown
                for (n, _), r in self.monitor.world.replicas.items()
                if n == node_id
            )
        )

    async def freeze(self) -> None:
        await self.alone(self._freeze)

    async def _freeze(self, node: SimNode) -> None:
        self.say(f"freeze {node.name}")
        node.freeze()
        await self.for_a_while()
        self.say(f"thaw {node.name}")
        node.thaw(self.random.uniform(0, 0.5))

    async def restart_all(self) -> None:
        """Kill all processes, at about the same time, and start them in any order."""
        nodes = [n for n in self.cluster.nodes.values() if n.id not in self._busy]
        with self.taking(*nodes):
            self.random.shuffle(nodes)
            for node in nodes:
                if node.is_running:
                    self.say(f"kill {node.name}")
                    node.kill()
                    await self.pause(self.random.uniform(0, 0.1))
            await self.for_a_while()
            self.random.shuffle(nodes)
            for node in nodes:
                self.say(f"start {node.name}")
                await self.start(node)
                await self.pause(self.random.uniform(0, 1))

    async def slow_threads(self) -> None:
        """Jobs for threads start late; the files they are for may be gone by then."""
        loop = self.cluster.simulation.loop
        # Two of these may overlap, so the delay before is not always the usual one.
        loop.job_delay_s_max = 2.0
        self.say("threads are slow")
        await self.pause(self.random.uniform(0.5, 4.0))
        self.say("threads are fast again")
        loop.job_delay_s_max = self._job_delay_s_max
