"""What goes wrong in a simulated cluster, and when: drawn from the seed, and mended in the end.

`FaultPlan.run` makes trouble for a while, `heal` mends everything. Each run draws which kinds of
trouble it has (a run with few kinds gets deeper than one with all of them), and aims at leaders and
the controller more often than at others.
Invariant: power losses stay within the budget in which no acknowledged record may be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from suwi.metadata.memory import Faults
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim import disk_troubles
from suwi.sim.cluster import SimCluster, SimNode
from suwi.sim.plots import fail_deletion, rebirth, relay
from suwi.sim.random import SimRandom
from suwi.sim.task_failures import UNITS, Sabotage, fail_task
from suwi.sim.watch import Watch

FAIL_TASK = "fail task"
_START_AGAIN_S = 0.5
_AT_ONCE_MAX = 3
"""How many troubles there are at the same time, at most."""


class FaultPlan:
    def __init__(
        self,
        cluster: SimCluster,
        watch: Watch,
        random: SimRandom,
        *,
        kinds: Sequence[str] | None = None,
        tasks: Sequence[str] = tuple(UNITS),
        power_losses: str = "budget",
        clients: Sequence[str] = ("c1", "c2"),
    ) -> None:
        """`tasks` are those that may fail. `power_losses`: "budget", or "any" where every message
        is synced before its answer. `clients` are the machines that clients run on."""
        self._cluster = cluster
        self.watch = watch
        self.random = random
        self.network = cluster.simulation.network
        self.session_s = cluster.store.session_timeout_s
        self._power_losses = power_losses
        self._clients = list(clients)
        self._job_delay_s_max = cluster.simulation.loop.job_delay_s_max
        self._busy: set[NodeId] = set()
        """Nodes whose process is being taken care of."""
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._without_power: set[NodeId] = set()
        """Nodes that lost power and are not back in every in-sync set."""
        self.is_healing = False
        self.tasks = list(tasks)
        self._kinds = list(kinds) if kinds is not None else self._draw_kinds()
        if FAIL_TASK in self._kinds:
            self.sabotage = Sabotage(cluster)

    def _draw_kinds(self) -> list[str]:
        share = self.random.choice((0.15, 0.4, 0.8))
        return [kind for kind in KINDS if self.random.chance(share)] or ["kill"]

    # -- for how long, and whom ------------------------------------------------------------------

    async def run(self, duration_s: float, pause_s_max: float = 1.5) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        while loop.time() < end_s:
            await asyncio.sleep(self.random.uniform(0, pause_s_max))
            if len(self._under_way) < _AT_ONCE_MAX:
                kind = self.random.choice(self._kinds)
                task = asyncio.create_task(KINDS[kind](self), name=kind)
                self._under_way[task] = None
                task.add_done_callback(lambda task: self._under_way.pop(task, None))

    async def heal(self) -> None:
        """Mend everything, and return when every broker is in service."""
        self.say("heal")
        self.is_healing = True
        self.network.heal()
        for host in [*(node.name for node in self._cluster.nodes.values()), *self._clients]:
            self.network.slow(host, 0)
        self._set_store_faults(Faults())
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        for node in self._cluster.nodes.values():
            node.heal_store()
            disk = node.machine.disk
            disk.faults.clear()
            disk.capacity_bytes = None
            if node.is_running and disk_troubles.has_lost_a_directory(node):
                self.say(f"restart {node.name}, whose data directory is offline")
                node.kill()
        await asyncio.gather(*(self._bring_back(node) for node in self._cluster.nodes.values()))

    def say(self, what: str) -> None:
        self._cluster.say(f"* {what}")

    async def for_a_while(self) -> None:
        """A moment, about a session's time, or much longer."""
        longest = self.random.choice((0.05, 0.5, 2.0, 1.5 * self.session_s, 3 * self.session_s))
        await self.pause(self.random.uniform(0, longest))

    async def pause(self, duration_s: float) -> None:
        step_s = 0.25
        while duration_s > 0 and not self.is_healing:
            await asyncio.sleep(min(step_s, duration_s))
            duration_s -= step_s

    def pick(self) -> SimNode | None:
        """A running broker that nothing is happening to; leaders and the controller rather."""
        free = [n for n in self._cluster.nodes.values() if n.is_running and n.id not in self._busy]
        if not free:
            return None
        truth = self.watch.truth
        draw = self.random.random()
        wanted: NodeId | None = None
        if draw < 0.5 and truth.topics:
            topic = self.random.choice(list(truth.topics.values()))
            wanted = self.random.choice(topic.partitions).leader
        elif draw < 0.65:
            wanted = self.controller()
        return next((n for n in free if n.id == wanted), None) or self.random.choice(free)

    async def _bring_back(self, node: SimNode) -> None:
        """Have it running and in service, however often that takes."""
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
        """Do something to one broker's process that nobody else interferes with."""
        node = self.pick()
        if node is not None:
            with self.taking(node):
                await act(node)

    @contextmanager
    def taking(self, *nodes: SimNode) -> Iterator[None]:
        """Have these processes for oneself."""
        self._busy.update(node.id for node in nodes)
        try:
            yield
        finally:
            self._busy.difference_update(node.id for node in nodes)

    def free(self, node_id: NodeId) -> SimNode | None:
        """A running broker that nothing is happening to."""
        node = self._cluster.nodes[node_id]
        return node if node.is_running and node_id not in self._busy else None

    def controller(self) -> NodeId | None:
        controller = self._cluster.store.ledger.controller
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
        """Begin its next life, again where that fails, and do not wait long for it."""
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
        lose power before the others are back in sync."""
        if self._power_losses == "any":
            return True
        world = self.watch.world
        held = {
            log: state
            for log, state in world.states.items()
            if node.id in state.isr or node.id in state.eligible
        }
        for log, state in held.items():
            if min(world.rules_of(log).min_insync_replicas, len(state.replicas)) < 2:
                return False
            if set(state.isr) != set(state.replicas) or state.leader == NO_NODE:
                return False
        # Where nothing is committed through it, it has nothing to lose.
        return not held or all(self._is_back(other) for other in self._without_power)

    def _is_back(self, node_id: NodeId) -> bool:
        """Whether what a power loss took is replaced: it is in sync again, in its new life."""
        registered = self.watch.truth.registered.get(node_id)
        held = self._cluster.store.ledger.registrations.get(f"brokers/{node_id}")
        return (
            registered is not None
            and held is not None
            and registered.epoch == held.epoch
            and self._cluster.nodes[node_id].in_service.is_set()
            and not any(
                r.is_suspect for (n, _), r in self.watch.world.replicas.items() if n == node_id
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
        """Every process dies, at about the same time, and comes back in any order."""
        nodes = [n for n in self._cluster.nodes.values() if n.id not in self._busy]
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
        """Jobs wait long for their threads, and what they are about may be gone by then."""
        loop = self._cluster.simulation.loop
        # It may begin again before it ends: what is usual is not what it finds.
        loop.job_delay_s_max = 2.0
        self.say("threads are slow")
        await self.pause(self.random.uniform(0.5, 4.0))
        self.say("threads are fast again")
        loop.job_delay_s_max = self._job_delay_s_max

    # -- the network -----------------------------------------------------------------------------

    def _two(self) -> tuple[str, str]:
        names = [node.name for node in self._cluster.nodes.values()]
        self.random.shuffle(names)
        return names[0], names[1]

    async def cut(self) -> None:
        """One way or both ways between two brokers."""
        one, other = self._two()
        both = self.random.chance(0.5)
        self.say(f"cut {one} -> {other}{' and back' if both else ''}")
        self.network.cut(one, other)
        if both:
            self.network.cut(other, one)
        await self.for_a_while()
        self.say(f"mend {one} - {other}")
        self.network.heal(one, other)

    async def isolate(self) -> None:
        """One broker from the other brokers; clients and the store still reach it, or not."""
        node = self.pick()
        if node is None:
            return
        others = [other.name for other in self._cluster.nodes.values() if other is not node]
        with_clients = self.random.chance(0.3)
        with_store = self.random.chance(0.3)
        self.say(
            f"isolate {node.name}{' from clients' * with_clients}{' and the store' * with_store}"
        )
        self.network.partition([node.name], [*others, *(self._clients if with_clients else [])])
        if with_store:
            node.cut_store()
        await self.for_a_while()
        self.say(f"mend {node.name}")
        if with_store:
            node.heal_store()
        for other in [*others, *self._clients]:
            self.network.heal(node.name, other)

    async def refuse(self) -> None:
        """A firewall between two brokers that answers with a reset, one way or both ways."""
        one, other = self._two()
        both = self.random.chance(0.5)
        self.say(f"{one} is refused by {other}{' and the other way' if both else ''}")
        self.network.refuse(one, other)
        if both:
            self.network.refuse(other, one)
        await self.for_a_while()
        self.say(f"{one} and {other} may talk again")
        self.network.heal(one, other)

    async def reset(self) -> None:
        node = self.pick()
        if node is not None:
            self.say(f"reset connections of {node.name}")
            self.network.reset(node.name)

    async def slow(self) -> None:
        node = self.pick()
        if node is None:
            return
        delay_ms = self.random.choice((20, 200, 2000))
        self.say(f"slow {node.name} by {delay_ms} ms")
        self.network.slow(node.name, delay_ms)
        await self.for_a_while()
        self.say(f"{node.name} is fast again")
        self.network.slow(node.name, 0)

    # -- the store -------------------------------------------------------------------------------

    async def cut_store(self) -> None:
        node = self.pick()
        if node is None:
            return
        self.say(f"{node.name} cannot reach the store")
        node.cut_store()
        await self.for_a_while()
        self.say(f"{node.name} can reach the store again")
        node.heal_store()

    async def expire(self) -> None:
        node = self.pick()
        if node is not None and node.view is not None:
            self.say(f"the session of {node.name} expires")
            node.view.expire()

    async def worsen_store(self) -> None:
        """Slow answers, lost answers, stale reads and late notices for everybody."""
        self.say("the store is slow and forgetful")
        random = self.random
        self._set_store_faults(
            Faults(
                latency_s=(0.0, random.choice((0.001, 0.05, 0.5))),
                notice_delay_s=(0.0, random.choice((0.01, 0.3, 1.0))),
                read_lag_max=random.choice((0, 2, 8)),
                new_session_lag_max=random.choice((0, 4)),
                unknown_applied_chance=random.choice((0.0, 0.2)),
                unknown_dropped_chance=random.choice((0.0, 0.2)),
            )
        )
        await self.for_a_while()
        self.say("the store is well")
        self._set_store_faults(Faults())

    def _set_store_faults(self, faults: Faults) -> None:
        for name in Faults.__slots__:
            setattr(self._cluster.store_faults, name, getattr(faults, name))


Trouble: TypeAlias = Callable[[FaultPlan], Coroutine[Any, Any, None]]

KINDS: dict[str, Trouble] = {
    "kill": FaultPlan.kill,
    "crash in a write": FaultPlan.crash_in_a_write,
    "stop": FaultPlan.stop,
    "lose power": FaultPlan.lose_power,
    "freeze": FaultPlan.freeze,
    "restart all": FaultPlan.restart_all,
    "cut": FaultPlan.cut,
    "isolate": FaultPlan.isolate,
    "refuse": FaultPlan.refuse,
    "reset": FaultPlan.reset,
    "slow": FaultPlan.slow,
    "fill disk": disk_troubles.fill,
    "stall disk": disk_troubles.stall,
    "fail disk": disk_troubles.fail_and_restart,
    "fail disk once": disk_troubles.fail_once,
    "deny access": disk_troubles.deny_access,
    "fail deletion": fail_deletion,
    FAIL_TASK: fail_task,
    "slow threads": FaultPlan.slow_threads,
    "cut store": FaultPlan.cut_store,
    "expire": FaultPlan.expire,
    "worsen store": FaultPlan.worsen_store,
    "relay": relay,
    "rebirth": rebirth,
}
