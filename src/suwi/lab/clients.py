"""The producers and consumers of a scenario, and the commands to them.

The stage passes commands to `do_…`, asks for `state` before and after each step, and calls `look`
after each step of the simulation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from suwi.client.connection import PeerConnection
from suwi.client.groups import committed_offsets
from suwi.client.transactions import State
from suwi.lab.commands import CannotRun
from suwi.lab.lab_consumer import LabConsumer, Received
from suwi.lab.lab_producer import NO_ANSWER, UNACKNOWLEDGED, LabProducer
from suwi.lab.recorder import Recorder
from suwi.lab.requests import fetch_once, records_of
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE, Offset, PartitionIndex, TopicPartition
from suwi.sim.checkers.facts import LogId
from suwi.sim.cluster import PORT, SimCluster

_TIMES = {0: "never processed", 1: "processed once", 2: "processed twice"}


@dataclass(eq=False, repr=False)
class Clients:
    _cluster: SimCluster
    _recorder: Recorder
    _states: Callable[[], Mapping[LogId, PartitionState]]
    """Those of the scenario's partitions."""
    _say: Callable[[str], None]
    _later: Callable[[Coroutine[Any, Any, None]], None]
    """Runs what the scenario does not await."""
    _producers: dict[str, LabProducer] = field(default_factory=dict)
    _consumers: dict[str, LabConsumer] = field(default_factory=dict)
    _processed: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    """How often each record was."""
    _unread_s: dict[TopicPartition, float] = field(default_factory=dict)
    """How long no consumer has read a partition, of those that one has read before."""
    _reading: set[TopicPartition] = field(default_factory=set)
    _looked_s: float = 0.0

    def state(self) -> dict[str, dict[str, str]]:
        return {
            name: {"has": " ".join(map(str, consumer.group.assignment)) or "nothing"}
            for name, consumer in self._consumers.items()
            if consumer.machine.is_running
        }

    def look(self) -> None:
        if not self._consumers:
            return
        now_s = self._recorder.now_s
        for partition in self._unread_s:
            if partition not in self._reading:
                self._unread_s[partition] += now_s - self._looked_s
        self._looked_s = now_s
        consumers = self._consumers.values()
        self._reading = {partition for each in consumers for partition in each.reading}
        for partition in sorted(self._reading):
            self._unread_s.setdefault(partition, 0.0)

    def end(self) -> None:
        for name in (*self._producers, *self._consumers):
            machine = self._cluster.simulation.machines[name]
            if machine.is_running:
                machine.kill()

    def _producer(self, name: str) -> LabProducer:
        producer = self._producers.get(name)
        if producer is None or not producer.machine.is_running:
            raise CannotRun(f"{name} was not started: `producer {name}`")
        return producer

    def _consumer(self, name: str) -> LabConsumer:
        consumer = self._consumers.get(name)
        if consumer is None or not consumer.machine.is_running:
            raise CannotRun(f"{name} was not started: `consumer {name} TOPIC group.id=NAME`")
        return consumer

    def _leader(self, topic: str | None = None) -> tuple[str, int | None]:
        """A topic, by default the first, and the leader of its first partition."""
        for log, state in self._states().items():
            if topic in (None, log.name.topic):
                return log.name.topic, None if state.leader == NO_NODE else int(state.leader)
        raise CannotRun("there is no topic yet" if topic is None else f"there is no topic {topic}")

    def _check_not_running(self, name: str) -> None:
        machine = self._cluster.simulation.machines.get(name)
        if machine is not None and machine.is_running:
            raise CannotRun(f"{name} was started already")

    # -- producers -------------------------------------------------------------------------------

    async def do_producer(self, name: str, *words: str) -> None:
        topic, _ = self._leader()
        self._check_not_running(name)
        given = dict(word.split("=", 1) for word in words)
        try:
            producer = self._producers[name] = LabProducer(
                self._cluster, name, given, partial(self._told, name)
            )
        except ValueError as error:
            raise CannotRun(str(error)) from None
        await self._tell(f"{name}: its start", producer.start(topic), is_told=False)

    async def do_send(self, name: str, *values: str) -> None:
        topic = None
        if values[0].startswith("topic="):
            topic, values = values[0].removeprefix("topic="), values[1:]
        self._later(self._send(self._producer(name), *self._leader(topic), values))
        await asyncio.sleep(0)

    async def _send(
        self, producer: LabProducer, topic: str, leader: int | None, values: Sequence[str]
    ) -> None:
        name, what = producer.name, " ".join(f'"{value}"' for value in values)
        acks = producer.settings["acks"]
        number = self._recorder.sent(name, f"{topic}-0", values, acks, leader)
        outcome = await producer.send(topic, values)
        if outcome == UNACKNOWLEDGED:
            self._say(f"{name}: {what} is sent and forgotten")
        elif isinstance(outcome, int):
            self._say(f"{name}: {what} is acknowledged at offset {outcome}")
        elif outcome == NO_ANSWER:
            self._say(f"{name}: {what} gets no answer")
        else:
            self._say(f"{name}: {what} is refused: {outcome}")
        is_told = isinstance(outcome, int)
        self._recorder.send_ended(
            name, number, int(outcome) if is_told else None, None if is_told else str(outcome)
        )

    async def do_send_offsets(self, name: str, consumer_name: str) -> None:
        producer, consumer = self._producer(name), self._consumer(consumer_name)
        transactions = producer.transactions
        if transactions is None:
            raise CannotRun(f"{name} has no transactional.id")
        if transactions.state is State.READY:
            transactions.begin()
        sent = transactions.send_offsets(
            consumer.settings["group.id"], dict(consumer.positions), consumer.group.membership
        )
        what = f"{name}: adding the offsets {_offsets(consumer.positions)}"
        await self._tell(what, producer.machine.spawn(sent))

    async def do_abort(self, name: str) -> None:
        await self._end_transaction(name, commit=False)

    async def _end_transaction(self, name: str, *, commit: bool) -> None:
        producer = self._producer(name)
        if producer.transactions is None or producer.transactions.state is State.READY:
            raise CannotRun(f"{name} has no transaction: it needs a transactional.id and a `send`")
        await self._tell(f"{name}: {'commit' if commit else 'abort'}", producer.end(commit=commit))

    # -- consumers -------------------------------------------------------------------------------

    async def do_consumer(self, name: str, *words: str) -> None:
        self._check_not_running(name)
        topics = [word for word in words if "=" not in word]
        for topic in topics:
            self._leader(topic)
        given = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            self._consumers[name] = LabConsumer(
                self._cluster, name, topics, given, partial(self._told, name), self._on_processed
            )
        except ValueError as error:
            raise CannotRun(str(error)) from None

    async def do_poll(self, name: str) -> None:
        try:
            received = await self._consumer(name).poll()
        except (BrokerError, OSError) as error:
            self._told(name, f"{name}: poll is refused: {_reason(error)}")
            return
        self._told(name, f"{name} receives {_records(received) or 'nothing'}")

    async def do_process(self, name: str, count: str | None = None) -> None:
        if not self._consumer(name).process(None if count is None else int(count)):
            self._say(f"{name} has nothing to process")

    def _on_processed(self, name: str, records: Sequence[Received]) -> None:
        again = [each for each in records if (each.partition, each.offset) in self._processed]
        for each in records:
            key = (each.partition, each.offset)
            self._processed[key] = self._processed.get(key, 0) + 1
        new = [each for each in records if each not in again]
        for which, suffix in ((again, ", again"), (new, "")):
            if which:
                self._told(name, f"{name} processes {_records(which)}{suffix}")

    async def do_commit(self, name: str, what: str = "") -> None:
        if name.startswith("p"):
            await self._end_transaction(name, commit=True)
            return
        consumer = self._consumer(name)
        is_processed = what == "processed"
        offsets = _offsets(consumer.processed if is_processed else consumer.positions)
        await self._tell(
            f"{name}: commit of {offsets or 'nothing'}", consumer.commit(processed=is_processed)
        )

    async def do_loop(self, name: str) -> None:
        self._consumer(name).loop()

    async def do_hang(self, name: str) -> None:
        self._consumer(name).is_hanging = True

    async def do_close(self, name: str) -> None:
        await self._consumer(name).close()

    async def do_crash(self, *names: str) -> None:
        for name in names:
            client = self._producer(name) if name.startswith("p") else self._consumer(name)
            client.machine.kill()

    async def do_committed(self, group: str) -> None:
        client = self._cluster.client("committed")
        offsets = await committed_offsets(client, group)
        await client.close()
        self._say(f"{group} has committed {_offsets(offsets) or 'nothing'}")

    async def do_tally(self, topic: str | None = None) -> None:
        """How often each record of the first partition was processed."""
        topic, leader = self._leader(topic)
        if leader is None:
            raise CannotRun(f"{topic} has no leader")
        client = await PeerConnection.open(f"b{leader}", PORT)
        fetched = await fetch_once(client, topic, 0)
        await client.close()
        partition = TopicPartition(topic, PartitionIndex(0))
        by_times: dict[int, list[Received]] = {}
        for record in records_of(fetched):
            times = self._processed.get((partition, record.offset), 0)
            value = (record.value or b"").decode()
            by_times.setdefault(times, []).append(Received(partition, record.offset, value))
        for times in sorted(by_times):
            label = _TIMES.get(times, f"processed {times} times")
            self._say(f"{label}: {_records(by_times[times])}")

    async def do_pauses(self) -> None:
        """How long nobody has read a partition since the last `pauses`, to the second."""
        self.look()
        for partition in sorted(self._unread_s):
            pause_s = round(self._unread_s[partition])
            what = f"is not read for {pause_s} s" if pause_s else "is read without a pause"
            self._say(f"{partition} {what}")
            self._unread_s[partition] = 0.0

    async def _tell(self, what: str, asked: Awaitable[Any], *, is_told: bool = True) -> None:
        """Say how a request of the client that `what` begins with ends; `is_told`: also if it
        succeeds."""
        try:
            await asked
        except (BrokerError, OSError) as error:
            self._told(what.partition(":")[0], f"{what} is refused: {_reason(error)}")
            return
        if is_told:
            self._told(what.partition(":")[0], f"{what} succeeds")

    def _told(self, name: str, what: str) -> None:
        """What a client is told or does by itself; what it sends has events of its own."""
        self._recorder.told(name, what)
        self._say(what)


def _reason(error: Exception) -> str:
    return error.code.name.upper() if isinstance(error, BrokerError) else NO_ANSWER


def _offsets(offsets: Mapping[TopicPartition, Offset]) -> str:
    return ", ".join(f"{partition} {offsets[partition]}" for partition in sorted(offsets))


def _records(records: Sequence[Received]) -> str:
    """By partition, with the partition's name if there are several."""
    names = sorted({each.partition for each in records})
    return "; ".join(
        (f"{name}: " if len(names) > 1 else "")
        + ", ".join(f'{each.offset} "{each.value}"' for each in records if each.partition == name)
        for name in names
    )
