"""Runs a transcript: commands to a simulated cluster, and after each block what they changed.

A transcript is text. Blocks are separated by empty lines; a block has commands, a line `----`, and
the changes that follow. Lines that begin with `#` are comments. Time does not pass between
commands; at the end of a block the cluster runs for a second, unless the last command is `until` or
`wait`. These are the commands; topics have one partition:

    topic orders b1 b2 b3 min.insync.replicas=2   create it, with these replicas
    topic-at b4 other b1                          send to b4; the response is shown when it arrives
    delete orders
    produce b1 acks=all "x"                       send to b1; the response is shown when it arrives
    delete-records b1 2                           those below offset 2
    read b1                                       what b1 returns to a consumer
    fetch-at b1 epoch=0                           what b1 returns to a fetch with that leader epoch
    latest b1 / latest b1 v4                      the end offset that b1 returns, in that version
    logs                                          the records in every replica's log
    kill b1 / start b1 / stop b1 / power-off b1   its process, or its machine
    begin b1                                      as start, without waiting for it
    freeze b1 / thaw b1
    cut b1 -> b2 / cut b1 <-> b2                  one way, or both
    heal / heal b1 b2                             all links, or those between two
    cut-store b1 / heal-store b1 / expire b1      its link to the metadata store, its session
    slow-store b1 500ms                           the delay of its writes to the store
    slow b1 200ms
    until b1 hw 1 / until b2 end 1                run until exactly the step after which
    until leader b2 / until in-sync b1 b2         this is true
    until b1 connects b2
    wait 5s

There are four brokers. b4 is the controller and has no replicas, unless a topic says otherwise. The
network always takes half a millisecond and nothing is random, so the same transcript always runs
the same.
"""

import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from simulation.checkers import Committed, all_checkers
from simulation.checkers.facts import LogId
from simulation.invariant_monitor import InvariantMonitor
from suwi.client.connection import PeerConnection
from suwi.client.isolation_filter import visible_records
from suwi.metadata.memory import Faults
from suwi.model.ids import NO_NODE, NodeId, Offset
from suwi.records.batch import batches
from suwi.records.record import iter_records
from suwi.sim import SimDisk, Simulation
from suwi.sim.cluster import PORT, SimCluster, SimNode
from suwi.wire.versions import ApiKey
from tests.broker.simulated import fetch_once, produce

SESSION_S = 3.0
SETTLE_S = 1.0
PATIENCE_S = 60.0
"""How long `until` waits, in virtual time."""
SETTINGS = {"replica.lag.time.max.ms": "10000", "auto.leader.rebalance.enable": "false"}
RESULT = "----"


@dataclass
class Block:
    commands: list[str]
    expected: list[str]
    comments: list[str] = field(default_factory=list)


def parse(text: str) -> list[Block]:
    """The blocks of a transcript, each with the comments before and in it."""
    blocks = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.splitlines()
        result_at = lines.index(RESULT) if RESULT in lines else len(lines)
        commands = [line for line in lines[:result_at] if line.strip()]
        blocks.append(Block(commands, [line for line in lines[result_at + 1 :] if line.strip()]))
    return blocks


def render(blocks: list[Block], found: list[list[str]]) -> str:
    """The transcript with what was found in place of what was expected."""
    parts = []
    for block, lines in zip(blocks, found, strict=True):
        is_comment = all(line.startswith("#") for line in block.commands)
        parts.append("\n".join(block.commands if is_comment else [*block.commands, RESULT, *lines]))
    return "\n\n".join(parts) + "\n"


def play(blocks: list[Block]) -> list[list[str]]:
    """Run a transcript. Returns what each block changed. Raises what a checker finds."""
    simulation = Simulation(0, schedule="fifo")
    simulation.network.delay_ms = (0.5, 0.5)
    simulation.network.chop_chance = 0.0
    stage = Stage(simulation)
    return simulation.run(stage.play(blocks))


class Stage:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = SimCluster(
            simulation, brokers=4, session_timeout_s=SESSION_S, settings=SETTINGS
        )
        self.watch = InvariantMonitor(self.cluster, all_checkers(Committed()))
        self.results: list[str] = []
        self._background: dict[asyncio.Task[None], None] = {}
        self._waits: list[tuple[Callable[[], bool], asyncio.Event]] = []
        simulation.add_checker(self._look)

    async def play(self, blocks: list[Block]) -> list[list[str]]:
        # One after the other: the first one becomes the controller.
        for node in reversed(self.cluster.nodes.values()):
            await node.start()
        await asyncio.sleep(SETTLE_S)
        found = []
        for block in blocks:
            commands = [line for line in block.commands if not line.startswith("#")]
            found.append(await self._play_block(commands) if commands else [])
        for task in self._background:
            task.cancel()
        return found

    async def _play_block(self, commands: list[str]) -> list[str]:
        before = self._state()
        self.results = []
        for command in commands:
            words = shlex.split(command, comments=True)
            await getattr(self, "do_" + words[0].replace("-", "_"))(*words[1:])
        if commands[-1].split()[0] not in ("until", "wait"):
            await asyncio.sleep(SETTLE_S)
        changed = _differences(before, self._state())
        return [*changed, *self.results] or ["nothing changes"]

    # -- state -----------------------------------------------------------------------------------

    def _state(self) -> dict[str, dict[str, str]]:
        """The state that a transcript shows, as text, by broker or partition."""
        state: dict[str, dict[str, str]] = {}
        for log, partition in self.watch.world.states.items():
            leader = "none" if partition.leader == NO_NODE else f"b{partition.leader}"
            state[log.name.topic] = {
                "id": str(log.topic_id),
                "leader": leader,
                "epoch": str(partition.leader_epoch),
                "in sync": _brokers(partition.isr),
                "eligible": _brokers(partition.elr),
                "suspect": _brokers(partition.unclean_shutdown_replicas),
            }
        for node in self.cluster.nodes.values():
            for log in self.watch.world.states:
                replica = self.watch.world.replica(node.id, log)
                if replica is not None:
                    state[self._name(node, log)] = {
                        "end": str(replica.end),
                        "hw": str(replica.watermark),
                    }
        return state

    def _name(self, node: SimNode, log: LogId) -> str:
        return node.name if len(self.watch.world.states) == 1 else f"{node.name} {log.name.topic}"

    def _look(self) -> None:
        for condition, event in self._waits:
            if not event.is_set() and condition():
                event.set()

    def _node(self, name: str) -> SimNode:
        return self.cluster[int(name.removeprefix("b"))]

    def _later(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._background[task] = None
        task.add_done_callback(lambda task: self._background.pop(task, None))

    # -- topics and records ----------------------------------------------------------------------

    async def _controller(self) -> PeerConnection:
        controller = self.cluster.store.ledger.controller
        assert controller is not None, "the cluster has no controller"
        return await PeerConnection.open(f"b{controller.node_id}", PORT)

    async def do_topic(self, name: str, *words: str) -> None:
        error = await self._create(await self._controller(), name, words)
        assert not error, error

    async def do_topic_at(self, broker: str, name: str, *words: str) -> None:
        client = await PeerConnection.open(broker, PORT)

        async def ask() -> None:
            error = await self._create(client, name, words)
            outcome = f"is refused by {broker}: {error}" if error else f"is made by {broker}"
            self.results.append(f"topic {name} {outcome}")

        self._later(ask())
        await asyncio.sleep(0)

    async def _create(self, client: PeerConnection, name: str, words: tuple[str, ...]) -> str:
        replicas = [int(word[1:]) for word in words if "=" not in word]
        configs = [word.split("=", 1) for word in words if "=" in word]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": replicas}],
            "configs": [{"name": key, "value": value} for key, value in configs],
        }
        answer = await client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})
        await client.close()
        return _error(answer.topics[0].error_code)

    async def do_delete(self, name: str) -> None:
        client = await self._controller()
        answer = await client.call(
            ApiKey.DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 30_000}
        )
        assert answer.responses[0].error_code == 0, answer
        await client.close()

    async def do_produce(self, broker: str, acks: str, *values: str) -> None:
        topic = next(log.name.topic for log in self.watch.world.states)
        if "=" not in acks:
            topic, (acks, *rest) = acks, values
            values = tuple(rest)
        number = {"acks=all": -1, "acks=1": 1}[acks]
        self._later(self._produce(broker, topic, number, values))
        await asyncio.sleep(0)

    async def _produce(self, broker: str, topic: str, acks: int, values: tuple[str, ...]) -> None:
        what = " ".join(f'"{value}"' for value in values)
        try:
            client = await PeerConnection.open(broker, PORT)
            answer = await produce(client, topic, [v.encode() for v in values], acks=acks)
            await client.close()
        except OSError:
            self.results.append(f"{what} gets no answer from {broker}")
            return
        if answer.error_code:
            self.results.append(f"{what} is refused by {broker}: {_error(answer.error_code)}")
        else:
            self.results.append(f"{what} is acknowledged at offset {answer.base_offset}")

    async def do_read(self, broker: str, topic: str | None = None) -> None:
        topic = topic or next(log.name.topic for log in self.watch.world.states)
        client = await PeerConnection.open(broker, PORT)
        fetched = await fetch_once(client, topic, 0)
        await client.close()
        if fetched.error_code:
            self.results.append(f"{broker} shows nothing: {_error(fetched.error_code)}")
            return
        records = visible_records(bytes(fetched.records or b""), Offset(0)).records
        shown = ", ".join(f'{r.offset} "{(r.value or b"").decode()}"' for r in records)
        self.results.append(f"{broker} shows {shown or 'nothing'}")

    async def do_delete_records(self, broker: str, before: str) -> None:
        topic = next(log.name.topic for log in self.watch.world.states)
        partitions = [{"partition_index": 0, "offset": int(before)}]
        client = await PeerConnection.open(broker, PORT)
        answer = await client.call(
            ApiKey.DELETE_RECORDS,
            2,
            {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000},
        )
        await client.close()
        error = _error(answer.topics[0].partitions[0].error_code)
        self.results.append(
            error or f"{topic} starts at {answer.topics[0].partitions[0].low_watermark}"
        )

    async def do_fetch_at(self, broker: str, epoch: str) -> None:
        topic = next(log.name.topic for log in self.watch.world.states)
        client = await PeerConnection.open(broker, PORT)
        fetched = await fetch_once(client, topic, 0, epoch=int(epoch.removeprefix("epoch=")))
        await client.close()
        self.results.append(f"{broker} answers {_error(fetched.error_code) or 'with records'}")

    async def do_latest(self, broker: str, version: str = "v11") -> None:
        topic = next(log.name.topic for log in self.watch.world.states)
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        client = await PeerConnection.open(broker, PORT)
        answer = await client.call(
            ApiKey.LIST_OFFSETS,
            int(version.removeprefix("v")),
            {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000},
        )
        await client.close()
        (found,) = answer.topics[0].partitions
        self.results.append(f"{broker} answers {_error(found.error_code) or found.offset}")

    async def do_logs(self) -> None:
        """The records on the disks, also of brokers that are not running."""
        for log, state in self.watch.world.states.items():
            for node in self.cluster.nodes.values():
                if node.id in state.replicas:
                    held = ", ".join(_records_in(node.machine.disk, f"/data/{log.name}"))
                    self.results.append(f"{self._name(node, log)} has {held or 'nothing'}")

    # -- processes -------------------------------------------------------------------------------

    async def do_kill(self, broker: str) -> None:
        self._node(broker).kill()

    async def do_power_off(self, broker: str) -> None:
        self._node(broker).power_off(tear=False)

    async def do_start(self, broker: str) -> None:
        """Returns when the broker is in service, or after a time limit."""
        await asyncio.wait([self._node(broker).begin()], timeout=2 * SESSION_S)

    async def do_begin(self, broker: str) -> None:
        self._node(broker).begin()

    async def do_stop(self, broker: str) -> None:
        clean = await self._node(broker).stop()
        self.results.append(f"{broker} stops{'' if clean else ', but not cleanly'}")

    async def do_freeze(self, broker: str) -> None:
        self._node(broker).freeze()

    async def do_thaw(self, broker: str) -> None:
        self._node(broker).thaw()

    # -- links -----------------------------------------------------------------------------------

    async def do_cut(self, one: str, arrow: str, other: str) -> None:
        assert arrow in ("->", "<->"), arrow
        self.simulation.network.cut(one, other)
        if arrow == "<->":
            self.simulation.network.cut(other, one)

    async def do_heal(self, *links: str) -> None:
        self.simulation.network.heal(*links)

    async def do_slow(self, broker: str, delay: str) -> None:
        self.simulation.network.slow(broker, 1000 * _seconds(delay))

    async def do_cut_store(self, broker: str) -> None:
        self._node(broker).cut_store()

    async def do_heal_store(self, broker: str) -> None:
        self._node(broker).heal_store()

    async def do_slow_store(self, broker: str, delay: str) -> None:
        view = self._node(broker).view
        assert view is not None
        view.faults = Faults(latency_s=(_seconds(delay), _seconds(delay)))

    async def do_expire(self, broker: str) -> None:
        view = self._node(broker).view
        assert view is not None
        view.expire()

    # -- time ------------------------------------------------------------------------------------

    async def do_wait(self, duration: str) -> None:
        await asyncio.sleep(_seconds(duration))

    async def do_until(self, *words: str) -> None:
        """Run until exactly the step after which the condition is true."""
        condition = self._condition(*words)
        if condition():
            return
        event = asyncio.Event()
        self._waits.append((condition, event))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await event.wait()
        except TimeoutError:
            raise AssertionError(f"until {' '.join(words)}: {self._state()}") from None
        finally:
            self._waits = [wait for wait in self._waits if wait[1] is not event]

    def _condition(self, *words: str) -> Callable[[], bool]:
        states = self.watch.world.states
        match words:
            case ("leader", broker):
                node = NodeId(int(broker[1:]))
                return lambda: any(state.leader == node for state in states.values())
            case ("in-sync", *brokers):
                nodes = {NodeId(int(broker[1:])) for broker in brokers}
                return lambda: any(set(state.isr) == nodes for state in states.values())
            case (broker, "connects", other):
                return lambda: self._has_authenticated(other, broker)
            case (broker, mark, value):
                node = NodeId(int(broker[1:]))
                attribute = {"hw": "watermark", "end": "end"}[mark]
                return lambda: any(
                    getattr(replica, attribute) == int(value)
                    for (owner, log), replica in self.watch.world.replicas.items()
                    if owner == node and log in states
                )
        raise AssertionError(f"until what? {words}")

    def _has_authenticated(self, broker: str, other: str) -> bool:
        """Whether the other broker has connected and authenticated as a broker."""
        running = self.cluster[int(broker[1:])].broker
        assert running is not None
        return any(
            connection.client.is_peer and connection.peer_host == other
            for listener in running.listeners
            for connection in listener.connections
        )


def _differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    lines = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if new is None:
            if old is not None and "leader" in old:
                lines.append(f"{name} is gone")
        elif "leader" in new and (old is None or old["id"] != new["id"]):
            facts = f"leader {new['leader']}, epoch {new['epoch']}, in sync {new['in sync']}"
            lines.append(f"{name}: {'another topic, ' * (old is not None)}{facts}")
        else:
            known = old or {"end": "0", "hw": "0"}
            facts = ", ".join(f"{k} {known[k]} -> {new[k]}" for k in new if known[k] != new[k])
            if facts:
                lines.append(f"{name}: {facts}" if "leader" in new else f"{name} {facts}")
    return lines


def _brokers(nodes: Sequence[NodeId]) -> str:
    return " ".join(f"b{node}" for node in nodes) or "none"


def _records_in(disk: SimDisk, directory: str) -> Iterator[str]:
    for name in disk.list_dir(directory) if disk.exists(directory) else ():
        if name.endswith(".log"):
            data = memoryview(bytes(disk.peek(f"{directory}/{name}")))
            for position, header in batches(data):
                batch = data[position : position + header.size_bytes]
                for record in iter_records(batch, header):
                    value = (record.value or b"").decode()
                    yield f'{record.offset} "{value}" (epoch {header.partition_leader_epoch})'


def _seconds(text: str) -> float:
    unit, factor = ("ms", 0.001) if text.endswith("ms") else ("s", 1.0)
    return float(text.removesuffix(unit)) * factor


def _error(code: int) -> str:
    return ErrorCode(code).name.upper() if code else ""
