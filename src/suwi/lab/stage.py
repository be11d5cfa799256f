"""Plays a scenario on a simulated cluster and records what each step changes.

Time does not pass between commands; at the end of a step the cluster runs for a second, unless the
last command is `until` or `wait`. There are four brokers. b4 is the controller and has no replicas,
unless a topic says otherwise. The network always takes half a millisecond and nothing is random, so
the same scenario always runs the same.
"""

import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.admin.event_text import event_text
from suwi.client.connection import PeerConnection
from suwi.client.isolation_filter import visible_records
from suwi.env.tasks import wait_for_event
from suwi.lab.clients import Clients
from suwi.lab.commands import CannotRun
from suwi.lab.events import Fetch, FetchAnswer, Loss, Recording, StepBegins, StepEnds
from suwi.lab.recorder import Recorder, record_text, records_in
from suwi.lab.requests import ask, fetch_once, produce_records, produce_unanswered
from suwi.lab.scenario import Scenario, ScenarioError, Step
from suwi.log import names
from suwi.log.partition_log import PartitionLog
from suwi.metadata.image import PartitionState
from suwi.metadata.memory import Faults
from suwi.model.ids import NO_NODE, NodeId, Offset, TopicPartition
from suwi.records.batch import batches
from suwi.records.record import Record
from suwi.replica.partition import Partition
from suwi.sim import Simulation
from suwi.sim.checkers import Committed, all_checkers
from suwi.sim.checkers.facts import Broken, Checker, LogId
from suwi.sim.clock import START_MS
from suwi.sim.cluster import DATA, PORT, SimCluster, SimNode
from suwi.sim.disk import SimDisk
from suwi.sim.invariant_monitor import InvariantMonitor
from suwi.wire.versions import ApiKey

SESSION_S = 3.0
SETTLE_S = 1.0
PATIENCE_S = 60.0
"""How long `until` waits, in virtual time."""
_WITHOUT_LIMIT = ("until", "wait", "restart")
SETTINGS = {
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


FAULTS = frozenset(
    "freeze thaw cut heal slow cut-store heal-store slow-store expire crash hang".split()
)
"""The commands that are faults or end them; processes that start and end are recorded anyway."""


def play(scenario: Scenario, source: str = "scenario") -> Recording:
    """Raises what a checker finds, unless a mutant is to be shown."""
    simulation = Simulation(0, schedule="fifo")
    simulation.network.delay_ms = (0.5, 0.5)
    simulation.network.chop_chance = 0.0
    stage = Stage(simulation, scenario)
    with stage.recorder.tapped():
        simulation.run(stage.play())
    return stage.recorder.recording(source)


def changes(recording: Recording) -> list[list[str]]:
    """What each step changed, as scenarios assert it."""
    return [list(event.changes) for event in recording.events if isinstance(event, StepEnds)]


class Stage:
    def __init__(self, simulation: Simulation, scenario: Scenario) -> None:
        self.simulation = simulation
        self.scenario = scenario
        self.cluster = SimCluster(
            simulation,
            brokers=4,
            session_timeout_s=SESSION_S,
            settings={**SETTINGS, **scenario.settings},
        )
        checkers = all_checkers(Committed())
        if scenario.mutant is not None:
            for checker in checkers:
                _report_instead_of_raising(checker, self._show_violation)
        self.recorder = Recorder(self.cluster, with_values=True)
        self.watch = InvariantMonitor(self.cluster, [self.recorder, *checkers])
        self.results: list[str] = []
        self.clients = Clients(
            self.cluster, self.recorder, lambda: self._states, self._say, self._later
        )
        self._background: dict[asyncio.Task[None], None] = {}
        self._fetches_from: int | None = None
        """The first event of the step whose fetches are listed."""
        self._waits: list[tuple[Callable[[], bool], asyncio.Event]] = []
        simulation.add_checker(self._look)

    async def play(self) -> None:
        # One after the other: the first one becomes the controller.
        for node in reversed(self.cluster.nodes.values()):
            await node.start()
        await asyncio.sleep(SETTLE_S)
        for number, step in enumerate(self.scenario.played, 1):
            await self._play_step(number, step)
        for task in self._background:
            task.cancel()
        self.clients.end()

    async def _play_step(self, number: int, step: Step) -> None:
        before = self._state()
        self.results = []
        self._fetches_from = None
        first = len(self.recorder.events)
        self.recorder.note(
            StepBegins,
            step=number,
            commands=tuple(command for _, command in step.commands),
            en=step.prose.en,
            ko=step.prose.ko,
        )
        for line, command in step.commands:
            words = shlex.split(command, comments=True)
            if words[0] in FAULTS:
                self.recorder.fault(" ".join(words))
            # `wait` and `until` have limits of their own; a broker that hangs answers never.
            limit_s = None if words[0] in _WITHOUT_LIMIT else PATIENCE_S
            try:
                async with asyncio.timeout(limit_s):
                    await self._command(words[0])(*words[1:])
            except TimeoutError:
                reason = f"it does not end within {PATIENCE_S:g} s"
                raise ScenarioError(line, f"`{command}` cannot be run: {reason}") from None
            except (CannotRun, OSError) as error:
                raise ScenarioError(line, f"`{command}` cannot be run: {error}") from error
        if step.commands[-1][1].split()[0] not in ("until", "wait"):
            await asyncio.sleep(SETTLE_S)
        found = [
            *self._fetches(),
            *_differences(before, self._state()),
            *(_loss(event) for event in self.recorder.events[first:] if isinstance(event, Loss)),
            *self.results,
        ] or ["nothing changes"]
        self.recorder.note(StepEnds, step=number, changes=tuple(found))

    def _command(self, name: str) -> Callable[..., Coroutine[Any, Any, None]]:
        method = "do_" + name.replace("-", "_")
        found: Callable[..., Coroutine[Any, Any, None]] = getattr(
            self if hasattr(self, method) else self.clients, method
        )
        return found

    def _say(self, result: str) -> None:
        self.results.append(result)

    def _show_violation(self, broken: Broken) -> None:
        text = re.sub(r" crc \w+|: PartitionState.*", "", str(broken))
        self.recorder.violation(text)
        self.results.append(f"violated: {text}")

    def _fetches(self) -> Iterator[str]:
        """Those of followers of the scenario's own topics, and what they got."""
        if self._fetches_from is None:
            return
        logs = {str(log): log for log in self._states}
        for event in self.recorder.events[self._fetches_from :]:
            if event.partition in logs and event.broker is not None:
                who = self._name(self.cluster[event.broker], logs[event.partition])
                match event:
                    case Fetch():
                        yield f"{who} fetches from {event.offset}"
                    case FetchAnswer():
                        records = "records and " if event.size_bytes else ""
                        yield f"{who} gets {event.error or f'{records}hw {event.high_watermark}'}"

    # -- state -----------------------------------------------------------------------------------

    def _state(self) -> dict[str, dict[str, str]]:
        """The state that a scenario shows, as text, by broker or partition."""
        controller = self.cluster.store.ledger.controller
        name = "none" if controller is None else f"b{controller.node_id}"
        state: dict[str, dict[str, str]] = {"cluster": {"controller": name}}
        for log, partition in self._states.items():
            leader = "none" if partition.leader == NO_NODE else f"b{partition.leader}"
            state[self._label(log)] = {
                "id": str(log.topic_id),
                "leader": leader,
                "epoch": str(partition.leader_epoch),
                "in sync": _brokers(partition.isr),
                "eligible": _brokers(partition.elr),
                "suspect": _brokers(partition.unclean_shutdown_replicas),
            }
        for node in self.cluster.nodes.values():
            for log in self._states:
                marks = self._marks(node, log)
                if marks is not None:
                    names = ("start", "end", "hw")
                    state[self._name(node, log)] = dict(zip(names, map(str, marks), strict=True))
        return state | self.clients.state()

    def _marks(self, node: SimNode, log: LogId) -> tuple[int, int, int] | None:
        """Start, end and high watermark of a replica."""
        replica = self.watch.world.replica(node.id, log)
        if replica is not None:
            return replica.start, replica.end, replica.watermark
        # Compacted logs are not monitored.
        for partition in node.broker.replicas if node.broker is not None else ():
            if partition.topic_id == log.topic_id and partition.is_open:
                opened = partition.log_as_it_is
                return opened.start_offset, opened.end_offset, partition.watermark_as_it_is
        return None

    @property
    def _states(self) -> dict[LogId, PartitionState]:
        """Those of the scenario's own topics."""
        states = self.watch.world.states
        return {log: state for log, state in states.items() if log.name.topic[:2] != "__"}

    @property
    def _now_ms(self) -> int:
        return START_MS + int(1000 * self.simulation.loop.time())

    def _topic(self) -> str:
        for log in self._states:
            return log.name.topic
        raise CannotRun("there is no topic yet")

    def _label(self, log: LogId) -> str:
        """The topic; with several partitions also its number."""
        partitions = sum(other.name.topic == log.name.topic for other in self._states)
        return log.name.topic if partitions == 1 else str(log.name)

    def _name(self, node: SimNode, log: LogId) -> str:
        return node.name if len(self._states) == 1 else f"{node.name} {self._label(log)}"

    def _look(self) -> None:
        self.clients.look()
        for condition, event in self._waits:
            if not event.is_set() and condition():
                event.set()

    def _node(self, name: str) -> SimNode:
        return self.cluster[int(name.removeprefix("b"))]

    def _running(self, name: str, *, is_wanted: bool = True) -> SimNode:
        node = self._node(name)
        if node.is_running != is_wanted:
            raise CannotRun(f"{name} is {'not running' if is_wanted else 'running already'}")
        return node

    def _later(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)  # owner: the stage, whose run fails with it
        self._background[task] = None
        task.add_done_callback(lambda task: self._background.pop(task, None))

    # -- topics and records ----------------------------------------------------------------------

    async def _controller(self) -> PeerConnection:
        controller = self.cluster.store.ledger.controller
        if controller is None:
            raise CannotRun("the cluster has no controller")
        return await PeerConnection.open(f"b{controller.node_id}", PORT)

    async def do_topic(self, name: str, *words: str) -> None:
        error, reason = await self._create(await self._controller(), name, words)
        if error:
            raise CannotRun(f"{error}: {reason}")

    async def do_topic_at(self, broker: str, name: str, *words: str) -> None:
        client = await PeerConnection.open(broker, PORT)

        async def ask() -> None:
            error, _ = await self._create(client, name, words)
            outcome = f"is refused by {broker}: {error}" if error else f"is made by {broker}"
            self.results.append(f"topic {name} {outcome}")

        self._later(ask())
        await asyncio.sleep(0)

    async def _create(
        self, client: PeerConnection, name: str, words: tuple[str, ...]
    ) -> tuple[str, str]:
        """The error, and what the broker says about it."""
        replicas = [int(word[1:]) for word in words if "=" not in word]
        configs = dict(word.split("=", 1) for word in words if "=" in word)
        partitions = range(int(configs.pop("partitions", 1)))
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": n, "broker_ids": replicas} for n in partitions],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        (created,) = (await ask(client, ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})).topics
        return _error(created.error_code), created.error_message or ""

    async def do_delete(self, name: str) -> None:
        asked = {"topic_names": [name], "timeout": 30_000}
        answer = await ask(await self._controller(), ApiKey.DELETE_TOPICS, 5, asked)
        if answer.responses[0].error_code:
            raise CannotRun(_error(answer.responses[0].error_code))

    async def do_produce(self, broker: str, acks: str, *values: str) -> None:
        topic = self._topic()
        if "=" not in acks:
            topic, (acks, *rest) = acks, values
            values = tuple(rest)
        records = [Record(value=value.encode(), timestamp=self._now_ms) for value in values]
        self._later(self._produce(broker, topic, acks.removeprefix("acks="), records))
        await asyncio.sleep(0)

    async def do_put(self, broker: str, *words: str) -> None:
        pairs = [word.encode().split(b"=", 1) for word in words]
        records = [Record(key=k, value=v or None, timestamp=self._now_ms) for k, v in pairs]
        self._later(self._produce(broker, self._topic(), "all", records))
        await asyncio.sleep(0)

    async def do_fill(self, broker: str, *words: str) -> None:
        batches, records, size_bytes = (int(word.split("=")[1]) for word in words)
        filler = Record(value=b" " * size_bytes, timestamp=self._now_ms)
        client = await PeerConnection.open(broker, PORT)
        for _ in range(batches):
            answer = await produce_records(client, self._topic(), [filler] * records)
            if answer.error_code:
                raise CannotRun(_error(answer.error_code))
        await client.close()

    async def _produce(self, broker: str, topic: str, acks: str, records: Sequence[Record]) -> None:
        values = [record_text(record) for record in records]
        what = " ".join(f'"{value}"' for value in values)
        number = self.recorder.sent("client", f"{topic}-0", values, acks, int(broker[1:]))
        offset: int | None = None
        error: str | None = None
        try:
            client = await PeerConnection.open(broker, PORT)
            if acks == "0":
                await produce_unanswered(client, topic, records)
                outcome = f"is sent to {broker}"
            else:
                answer = await produce_records(
                    client, topic, records, acks=-1 if acks == "all" else int(acks)
                )
                error = _error(answer.error_code) or None
                offset = None if error else answer.base_offset
                outcome = f"is acknowledged at offset {offset}"
                if error:
                    outcome = f"is refused by {broker}: {error}"
            await client.close()
        except OSError:
            error, outcome = "no answer", f"gets no answer from {broker}"
        self.results.append(f"{what} {outcome}")
        self.recorder.send_ended("client", number, offset, error)

    async def do_read(self, broker: str, *words: str) -> None:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        topic = words[0] if words and "=" not in words[0] else self._topic()
        first = Offset(int(options.get("from", 0)))
        client = await PeerConnection.open(broker, PORT)
        shown: list[str] = []
        while True:
            fetched = await fetch_once(client, topic, first, rack=options.get("rack", ""))
            data = fetched.records or b""
            assert isinstance(data, bytes | memoryview)
            found = visible_records(bytes(data), first)
            shown += [f'{record.offset} "{record_text(record)}"' for record in found.records]
            if found.next_offset <= first:
                break
            first = found.next_offset
        await client.close()
        if fetched.preferred_read_replica != NO_NODE:
            nearest = f"b{fetched.preferred_read_replica}"
            self._shown(f"{broker} sends the consumer to {nearest}")
            await self.do_read(nearest, topic, f"from={first}")
        elif fetched.error_code:
            self._shown(f"{broker} shows nothing: {_error(fetched.error_code)}")
        else:
            self._shown(f"{broker} shows {', '.join(shown) or 'nothing'}")

    def _shown(self, what: str) -> None:
        self.recorder.told("client", what)
        self.results.append(what)

    async def do_delete_records(self, broker: str, before: str) -> None:
        topic = self._topic()
        partitions = [{"partition_index": 0, "offset": int(before)}]
        asked = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000}
        client = await PeerConnection.open(broker, PORT)
        answer = await ask(client, ApiKey.DELETE_RECORDS, 2, asked)
        (found,) = answer.topics[0].partitions
        self.results.append(_error(found.error_code) or f"{topic} starts at {found.low_watermark}")

    async def do_fetch_at(self, broker: str, epoch: str) -> None:
        topic = self._topic()
        client = await PeerConnection.open(broker, PORT)
        fetched = await fetch_once(client, topic, 0, epoch=int(epoch.removeprefix("epoch=")))
        await client.close()
        self.results.append(f"{broker} answers {_error(fetched.error_code) or 'with records'}")

    async def do_latest(self, broker: str, version: str = "v11") -> None:
        topic = self._topic()
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        client = await PeerConnection.open(broker, PORT)
        request = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        answer = await ask(client, ApiKey.LIST_OFFSETS, int(version.removeprefix("v")), request)
        (found,) = answer.topics[0].partitions
        self.results.append(f"{broker} answers {_error(found.error_code) or found.offset}")

    async def do_logs(self) -> None:
        """The records on the disks, also of brokers that are not running."""
        for log, state in self._states.items():
            for node in self.cluster.nodes.values():
                if node.id in state.replicas:
                    found = records_in(node.machine.disk, f"{DATA}/{log.name}")
                    held = ", ".join(
                        f'{at} "{value}" (epoch {epoch})' for at, epoch, value in found
                    )
                    self.results.append(f"{self._name(node, log)} has {held or 'nothing'}")

    async def do_fetches(self) -> None:
        self._fetches_from = len(self.recorder.events)

    async def do_file(self, name: str) -> None:
        """As on the disks, also of brokers that are not running."""
        for log, state in self._states.items():
            for node in self.cluster.nodes.values():
                if node.id in state.replicas:
                    found = checkpoint_text(node.machine.disk, log.name, name)
                    self.results.append(f"{self._name(node, log)} {name}: {found or 'nothing'}")

    async def do_index(self, broker: str) -> None:
        self.results.append(f"{broker} index: {index_text(self._replica(broker).log_as_it_is)}")

    async def do_look_up(self, broker: str, offset: str) -> None:
        disk = self._node(broker).machine.disk
        log = self._replica(broker).log_as_it_is
        found = look_up_text(disk, log, Offset(int(offset)))
        self.results.append(f"{broker} {found or f'does not have offset {offset}'}")

    def _replica(self, broker: str) -> Partition:
        """Of the first topic, on a running broker."""
        running, name = self._running(broker).broker, f"{self._topic()}-0"
        for partition in running.replicas if running is not None else ():
            if str(partition.partition) == name and partition.is_open:
                return partition
        raise CannotRun(f"{broker} has no replica of {name}")

    # -- processes -------------------------------------------------------------------------------

    async def do_kill(self, broker: str) -> None:
        self._running(broker).kill()

    async def do_power_off(self, broker: str) -> None:
        self._node(broker).power_off(tear=False)

    async def do_start(self, broker: str) -> None:
        """Returns when the broker is in service, or after a time limit."""
        node = self._running(broker, is_wanted=False)
        await asyncio.wait([node.begin()], timeout=2 * SESSION_S)

    async def do_begin(self, broker: str) -> None:
        self._running(broker, is_wanted=False).begin()

    async def do_stop(self, broker: str) -> None:
        clean = await self._running(broker).stop()
        self.results.append(f"{broker} stops{'' if clean else ', but not cleanly'}")

    async def do_restart(self, *words: str) -> None:
        *brokers, times = words
        for broker in int(times.removeprefix("times=")) * brokers:
            await self._running(broker).stop()
            await self.do_start(broker)
            await asyncio.sleep(SETTLE_S)

    async def do_freeze(self, broker: str) -> None:
        self._running(broker).freeze()

    async def do_thaw(self, broker: str) -> None:
        self._running(broker).thaw()

    # -- links -----------------------------------------------------------------------------------

    async def do_cut(self, one: str, arrow: str, other: str) -> None:
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
        view = self._running(broker).view
        assert view is not None
        view.faults = Faults(latency_s=(_seconds(delay), _seconds(delay)))

    async def do_expire(self, broker: str) -> None:
        view = self._running(broker).view
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
            if not await wait_for_event(event, PATIENCE_S):
                raise CannotRun(f"it is not true within {PATIENCE_S:g} s; {self._state_text()}")
        finally:
            self._waits = [wait for wait in self._waits if wait[1] is not event]

    def _state_text(self) -> str:
        return "; ".join(
            f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items() if key != "id")
            for name, facts in self._state().items()
        )

    def _condition(self, *words: str) -> Callable[[], bool]:
        match words:
            case ("leader", broker):
                node = NodeId(int(broker[1:]))
                return lambda: any(state.leader == node for state in self._states.values())
            case ("in-sync", *brokers):
                nodes = {NodeId(int(broker[1:])) for broker in brokers}
                return lambda: any(set(state.isr) == nodes for state in self._states.values())
            case (broker, "connects", other):
                return lambda: self._has_authenticated(other, broker)
            case (broker, mark, value):
                node = NodeId(int(broker[1:]))
                attribute = {"hw": "watermark", "end": "end"}[mark]
                return lambda: any(
                    getattr(replica, attribute) == int(value)
                    for (owner, log), replica in self.watch.world.replicas.items()
                    if owner == node and log in self._states
                )
        raise CannotRun("this cannot be waited for")

    def _has_authenticated(self, broker: str, other: str) -> bool:
        """Whether the other broker has connected and authenticated as a broker."""
        running = self._node(broker).broker
        assert running is not None
        return any(
            connection.client.is_peer and connection.peer_host == other
            for listener in running.listeners
            for connection in listener.connections
        )


def _report_instead_of_raising(checker: Checker, report: Callable[[Broken], None]) -> None:
    """For a run whose violated invariants are shown."""

    def guarded(check: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                check(*arguments)
            except Broken as broken:
                report(broken)

        return call

    for name in dir(Checker):
        if name.startswith(("on_", "at_")):
            setattr(checker, name, guarded(getattr(checker, name)))


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
            known = old or {"start": "0", "end": "0", "hw": "0", "has": "nothing"}
            facts = ", ".join(f"{k} {known[k]} -> {new[k]}" for k in new if known[k] != new[k])
            if facts:
                lines.append(
                    f"{name} {facts}" if new.keys() & {"end", "has"} else f"{name}: {facts}"
                )
    return lines


def _loss(event: Loss) -> str:
    facts = {**event.facts, "broker": event.broker, "epoch": event.epoch}
    return f"reported: {event.what} in {event.partition}: {event_text(event.what, facts)}"


def _brokers(nodes: Sequence[NodeId]) -> str:
    return " ".join(f"b{node}" for node in nodes) or "none"


def _seconds(text: str) -> float:
    unit, factor = ("ms", 0.001) if text.endswith("ms") else ("s", 1.0)
    return float(text.removesuffix(unit)) * factor


def _error(code: int) -> str:
    return ErrorCode(code).name.upper() if code else ""


# -- what the files of a replica have --------------------------------------------------------------


def checkpoint_text(disk: SimDisk, partition: TopicPartition, name: str) -> str:
    """The lines of a partition: `0 0, 12 13`, or `orders 0 6`. Also of a broker that is not
    running."""
    is_of_partition = name == names.LEADER_EPOCHS
    path = f"{DATA}/{partition}/{name}" if is_of_partition else f"{DATA}/{name}"
    if not disk.exists(path):
        return "no such file"
    lines = disk.peek(path).decode().splitlines()[2:]  # After the version and the count.
    of_topic = f"{partition.topic} {partition.partition} "
    return ", ".join(line for line in lines if is_of_partition or line.startswith(of_topic))


def index_text(log: PartitionLog) -> str:
    """The entries of the active segment: the last offset of a batch and the batch's position. Those
    of a running broker, which holds the newest in memory."""
    index = log.active.offset_index
    entries = [f"{offset} -> {at}" for offset, at in map(index.entry, range(len(index)))]
    return ", ".join(entries) or "no entries"


def look_up_text(disk: SimDisk, log: PartitionLog, offset: Offset) -> str | None:
    """Where a read of this offset starts, and which batches it passes; None: it is not there."""
    segment = log.segments(offset)[0]
    start, found = segment.offset_index.look_up(offset), segment.locate(offset)
    if found is None:
        return None
    data = bytes(disk.peek(segment.log_path))[start : found.position + found.size_bytes]
    passed = [
        f"{header.base_offset}-{header.last_offset} at {start + position}"
        for position, header in batches(data)
    ]
    return f"reads {segment.log_path.rpartition('/')[2]} from {start}: {', '.join(passed)}"
