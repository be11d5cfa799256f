"""Clients of a simulated cluster: they write, read, create and delete, and record the responses.

The clients are Suwi's own (`suwi.client`), on separate machines. `Workload.begin` starts them;
`finish` lets the readers read to the end and reads everything once more.
"""

import asyncio
from dataclasses import replace

from simulation.access_rules import INTRUDER, Intruder, change_rules
from simulation.history import ACKS_ALL, History, Reading, Write
from simulation.mechanism_clients import (
    alter_min_insync,
    expire_offsets,
    expire_producers,
    grow,
    limit_clients,
    throttle,
    watch_partitions,
)
from simulation.pipelined import PipelinedWriter
from simulation.query_clients import flood, look_up
from simulation.reassigner import Reassigner
from simulation.shape import Shape, WriterKind
from simulation.side_topic import SideTopic
from simulation.stranger import Stranger
from simulation.topic_churn import Churn
from simulation.workload_context import TOPIC, WorkloadContext
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivery
from suwi.client.errors import is_transient
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Fetched, Reader, ReadSettings
from suwi.env import Env
from suwi.model.errors import (
    BrokerError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from suwi.model.ids import Offset, TopicPartition
from suwi.sim.cluster import SimCluster
from suwi.sim.random import SimRandom

READ_TO_END_S = 60.0
"""Within this time after healing every reader has read everything."""

_READ = ReadSettings(max_wait_ms=500)
_OUTSTANDING_MAX = 8


class NotHealed(AssertionError):
    """The cluster or a client has not recovered in time."""


class _PlainSettings(ProducerSettings):
    """acks=all without idempotence: a retry may be stored twice."""

    @property
    def is_idempotent(self) -> bool:
        return False


class Workload(WorkloadContext):
    def __init__(self, cluster: SimCluster, shape: Shape, history: History) -> None:
        super().__init__(cluster, shape, history)
        self._random = cluster.simulation.workload
        self._writers = cluster.simulation.machine("c1")
        self._readers = cluster.simulation.machine("c2")
        self._settings: dict[str, ProducerSettings] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._reassigner: Reassigner | None = None
        self._side: SideTopic | None = None
        self._reading: list[tuple[Reading, asyncio.Task[None], dict[TopicPartition, int]]] = []

    async def begin(self) -> None:
        """Create the topic and start the clients."""
        env, _ = self._writers.start(), self._readers.start()
        await self._writers.spawn(self.create(TOPIC, self.shape.partitions))
        for number, kind in enumerate(self.shape.writers):
            name = f"w{number}"
            random = self._random.stream(name)
            self._tasks.append(self._writers.spawn(self._write(name, kind, env, random)))
        for number in range(self.shape.readers):
            self._start_reader(f"r{number}", self._random.stream(f"r{number}"))
        if self.shape.deletes and not self.shape.copiers:
            self._tasks.append(self._writers.spawn(self._delete(self._random.stream("delete"))))
        for client, is_wanted in (
            (self._churn, self.shape.churns),
            (self._pipeline, self.shape.pipelines),
            (self._look_up, self.shape.looks_up),
            (self._flood, self.shape.floods),
            (self._reassign, self.shape.reassigns),
            (self._intrude, self.shape.strangers),
        ):
            if is_wanted:
                self._tasks.append(self._writers.spawn(client(env)))
        await self._begin_mechanisms(env)

    async def _begin_mechanisms(self, env: Env) -> None:
        shape = self.shape
        for name, client, is_wanted in (
            ("min.insync", alter_min_insync, shape.alters_min_insync),
            ("grow", grow, shape.grows),
            ("throttle", throttle, shape.throttles),
            ("passers-by", expire_offsets, shape.expires_offsets),
            ("old", expire_producers, shape.expires_producers),
            ("rules", change_rules, shape.changes_rules),
            ("quotas", limit_clients, shape.limits_clients),
            ("watch", watch_partitions, shape.watches),
        ):
            if is_wanted:
                random = self._random.stream(name)
                self._tasks.append(self._writers.spawn(client(self, env, random)))
        if shape.changes_rules:
            machine = self._cluster.simulation.machine(INTRUDER)
            random = self._random.stream("intruder")
            intruder = Intruder(self, self._cluster.nodes, machine.start(), random)
            self._tasks.append(machine.spawn(intruder.run()))
        if shape.has_side_topic:
            self._side = SideTopic(self, env, self._random.stream("side"))
            await self._writers.spawn(self._side.create())
            self._tasks.append(self._writers.spawn(self._side.run()))

    async def stop_writing(self) -> None:
        """Returns when all writes of all writers are answered or given up."""
        self.stop()
        await asyncio.gather(*self._tasks)

    async def finish(self) -> None:
        """After healing: read everything, and let the readers reach the end."""
        ends = await self._readers.spawn(self._read_finally())
        if self._side is not None:
            await self._readers.spawn(self._side.read_finally())
        for reading, task, positions in self._reading:
            for _ in range(int(READ_TO_END_S / 0.1)):
                if all(positions.get(tp, 0) >= end for tp, end in ends.items()):
                    break
                if task.done():
                    task.result()  # It failed.
                await asyncio.sleep(0.1)
            else:
                raise NotHealed(f"{reading.name} is at {positions}, the ends are {ends}")
            reading.finished()
            task.cancel()
        await asyncio.wait([task for _, task, _ in self._reading])

    async def _churn(self, env: Env) -> None:
        await Churn(self, env, self._random.stream("churn")).run()

    async def _pipeline(self, env: Env) -> None:
        await PipelinedWriter(self, "p0", env, self._random.stream("p0")).run()

    async def _reassign(self, _env: Env) -> None:
        self._reassigner = Reassigner(self, self._random.stream("reassign"))
        await self._reassigner.run()

    def calm_down(self) -> None:
        """No more targets and throttles: the cluster is to reach the last ones."""
        self.is_calm = True
        if self._reassigner is not None:
            self._reassigner.stop()

    async def _intrude(self, _env: Env) -> None:
        await Stranger(self, self._random.stream("stranger")).run()

    async def _look_up(self, env: Env) -> None:
        await look_up(self, env, self._random.stream("look up"))

    async def _flood(self, _env: Env) -> None:
        await flood(self, self._random.stream("flood"))

    async def _delete(self, random: SimRandom) -> None:
        """Delete records that a reader has read: they are committed."""
        client = self.client("delete")
        while not await self.stopped_within(random.uniform(0.5, 3)):
            partition = random.choice(self.partitions)
            seen = max(positions.get(partition, 0) for _, _, positions in self._reading)
            before = Offset(random.below(seen + 1))
            self.history.delete(str(partition), before)
            try:
                await Admin(client).delete_records({partition: before})
            except (BrokerError, OSError):
                pass
        await client.close()

    # -- writers ---------------------------------------------------------------------------------

    async def _write(self, name: str, kind: WriterKind, env: Env, random: SimRandom) -> None:
        plain = not kind.idempotent and kind.acks == ACKS_ALL
        settings = (_PlainSettings if plain else ProducerSettings)(
            acks=kind.acks,
            # Writers with short timeouts leave writes behind whose outcome is unknown.
            delivery_timeout_s=random.choice((2, 20)),
            codec=self.shape.codec,
            request_timeout_s=5,
        )
        self._settings[name] = settings
        client = self.client(name)
        producer = Producer(client, env.clock, settings)
        room = asyncio.Semaphore(_OUTSTANDING_MAX)
        waiting: list[asyncio.Task[None]] = []
        number = 0
        while not await self.stopped_within(random.uniform(0, self.shape.pause_s_max)):
            for _ in range(random.choice((1, 1, 2, 5))):
                await room.acquire()
                value = f"{name}:{number}".encode()
                number += 1
                outcome = self._send(producer, random.choice(self.partitions), name, value)
                # Passed on one after the other: that is the order in which they must be stored.
                waiting.append(asyncio.create_task(_wait(await outcome, room)))
            waiting = [task for task in waiting if not task.done()]
        if waiting:
            await asyncio.wait(waiting)
        await producer.close()
        await client.close()

    async def _send(
        self, producer: Producer, partition: TopicPartition, name: str, value: bytes
    ) -> tuple[Write, Delivery | None]:
        settings = self._settings[name]
        write = self.history.send(
            name, str(partition), value, acks=settings.acks, idempotent=settings.is_idempotent
        )
        try:
            return write, await producer.send(
                partition.topic, value, partition=int(partition.partition)
            )
        except (BrokerError, OSError):
            return write, None

    # -- readers ---------------------------------------------------------------------------------

    def _start_reader(self, name: str, random: SimRandom) -> None:
        reading = self.history.reader(name)
        positions = dict.fromkeys(self.partitions, 0)
        task = self._readers.spawn(self._read(reading, positions, random))
        self._reading.append((reading, task, positions))

    async def _read(
        self, reading: Reading, positions: dict[TopicPartition, int], random: SimRandom
    ) -> None:
        """Read without end; now and then with a new connection, from the same positions."""
        while True:
            client = self.client(reading.name)
            try:
                await self._read_with(client, reading, positions, random.between(5, 60))
            except OffsetOutOfRange:
                # Deleted; or lost in an unclean election.
                assert self.shape.unclean_elections or self.shape.deletes
                await self._reset(client, positions)
            except (BrokerError, OSError) as error:
                if not (is_transient(error) or isinstance(error, UnknownTopicOrPartition)):
                    raise
                await asyncio.sleep(0.5)
            await client.close()

    async def _reset(self, client: Cluster, positions: dict[TopicPartition, int]) -> None:
        """As auto.offset.reset=earliest does."""
        try:
            starts = await list_offsets(client, dict.fromkeys(positions, EARLIEST))
            ends = await list_offsets(client, dict.fromkeys(positions, LATEST))
        except (BrokerError, OSError):
            await asyncio.sleep(0.5)
            return
        for partition, position in positions.items():
            if not starts[partition].offset <= position <= ends[partition].offset:
                positions[partition] = starts[partition].offset

    async def _read_with(
        self,
        client: Cluster,
        reading: Reading,
        positions: dict[TopicPartition, int],
        times: int,
    ) -> None:
        for partition in self.partitions:
            positions.setdefault(partition, 0)
        for partition, position in positions.items():
            reading.start_at(str(partition), position)
        start = {partition: Offset(position) for partition, position in positions.items()}
        settings = replace(_READ, rack=_rack_of(reading)) if self.shape.rack_aware else _READ
        async with Reader(client, start, settings) as reader:
            for _ in range(times):
                await self._awake.wait()
                for fetched in await reader.read():
                    for record in fetched.records:
                        reading.saw(str(fetched.partition), record.offset, record.value or b"")
                    positions[fetched.partition] = fetched.next_offset

    async def _read_finally(self) -> dict[TopicPartition, int]:
        """Read everything for the history; returns where each partition ends."""
        ends: dict[TopicPartition, int] = {}
        client = self.client("final")
        starts = await list_offsets(client, dict.fromkeys(self.partitions, EARLIEST))
        for partition in self.partitions:
            found: list[tuple[int, bytes]] = []
            timestamps: list[tuple[int, int]] = []
            start = starts[partition].offset
            async with Reader(client, {partition: start}, _READ) as reader:
                while True:
                    (fetched,) = await _one(reader)
                    found += [(record.offset, record.value or b"") for record in fetched.records]
                    timestamps += [(each.offset, each.timestamp) for each in fetched.records]
                    if fetched.next_offset >= fetched.end_offset:
                        break
            ends[partition] = fetched.next_offset
            self.history.final(str(partition), found, start=start, timestamps=timestamps)
        await client.close()
        return ends


def _rack_of(reading: Reading) -> str:
    """Of a reader: that of one of the brokers."""
    return f"rack {int(reading.name[1:]) + 1}"


async def _wait(sent: tuple[Write, Delivery | None], room: asyncio.Semaphore) -> None:
    write, delivery = sent
    try:
        if delivery is not None:
            delivered = await delivery
            write.acked(delivered.offset if delivered.offset >= 0 else None)
    except (BrokerError, OSError):
        pass  # It may be stored or not.
    finally:
        room.release()


async def _one(reader: Reader) -> list[Fetched]:
    while True:
        fetched = await reader.read()
        if fetched:
            return fetched
