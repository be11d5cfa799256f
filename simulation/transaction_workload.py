"""Copiers in a simulated cluster: consume, transform, produce, exactly once.

Each copier copies one partition of the workload's topic: in one transaction the copies of a few
records, one in each partition of `COPIES`, and the offset up to which it has read. Some
transactions are aborted. A copier is killed, sleeps for longer than its transaction may be open,
or sleeps while another one takes over its transactional id. `settle` ends that and waits until
everything is copied; `checkers/copies.py` compares.
"""

import asyncio
from dataclasses import dataclass, field

from simulation.history import History, Write
from simulation.workload import NotHealed, Workload
from simulation.workload_context import StopSignal
from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator
from suwi.client.fetching import ReadSettings
from suwi.client.group_offsets import fetch_offsets, fetch_once
from suwi.client.offsets import LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.reader import Reader
from suwi.client.settings import ClientSettings
from suwi.client.transactions import State, TransactionalProducer
from suwi.model.errors import BrokerError
from suwi.model.features import TRANSACTION_VERSION
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.records.record import Record
from suwi.sim.cluster import SimCluster
from suwi.sim.machine import Machine
from suwi.sim.random import SimRandom
from suwi.wire.versions import ApiKey

COPIES = "copies"
GROUP = "copiers"
COPY_PARTITIONS = 2
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "4096",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
SETTLED_WITHIN_S = 90.0
_CLIENT = ClientSettings(connect_timeout_s=2, request_timeout_s=4, retry_timeout_s=8)
_READ = ReadSettings(max_wait_ms=300, committed_only=True)
_PRODUCER = ProducerSettings(delivery_timeout_s=8, request_timeout_s=4)
_TIMEOUT_MS = 2500
_DAWDLES_CHANCE = 0.05
_DAWDLES_OFTEN = 0.4
_SEEKS_CHANCE = 0.1
_SAFE_DOWNGRADE = 2


def copy_of(source: TopicPartition, offset: int, transaction: str, index: int) -> bytes:
    """The value of a copy; `source_of` reads it."""
    return f"{source} {offset} {transaction} {index}".encode()


def source_of(value: bytes) -> tuple[str, int]:
    """The partition and offset that a copy was made from."""
    partition, offset, _, _ = value.decode().split(" ")
    return partition, int(offset)


@dataclass(slots=True)
class Copies:
    """What must agree at the end."""

    sources: dict[str, list[int]] = field(default_factory=dict)
    """The offsets of the records of each source."""
    committed: dict[str, int] = field(default_factory=dict)
    """The group's offset of each source."""
    copies: dict[str, list[bytes]] = field(default_factory=dict)
    """The committed records of each partition of the copies."""


class TransactionWorkload:
    def __init__(self, cluster: SimCluster, workload: Workload, history: History) -> None:
        self.copies = Copies()
        self._cluster = cluster
        self._workload = workload
        self._history = history
        self._random = cluster.simulation.workload.stream("transactions")
        self._sources = workload.partitions[: workload.shape.copiers]
        self._targets = [
            TopicPartition(COPIES, PartitionIndex(index)) for index in range(COPY_PARTITIONS)
        ]
        self._observer = cluster.simulation.machine("auditor")
        self._stopped = StopSignal()
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0

    async def begin(self) -> None:
        self._observer.start()
        await self._observer.spawn(self._prepare())
        self._tasks = [asyncio.create_task(self._live(source)) for source in self._sources]
        self._tasks.append(self._observer.spawn(self._observe()))

    async def _prepare(self) -> None:
        await self._workload.create(COPIES, COPY_PARTITIONS)
        if self._workload.shape.transaction_version == 1:
            update = {
                "feature": TRANSACTION_VERSION,
                "max_version_level": 1,
                "allow_downgrade": True,
                "upgrade_type": _SAFE_DOWNGRADE,
            }
            fields = {"timeout": 9000, "feature_updates": [update], "validate_only": False}
            client = self._client("features")
            answer = await client.call_controller(ApiKey.UPDATE_FEATURES, fields)
            assert not answer.error_code
            await client.close()

    def _client(self, name: str) -> Cluster:
        return self._cluster.client(name, _CLIENT)

    # -- lives of a copier -----------------------------------------------------------------------

    async def _live(self, source: TopicPartition) -> None:
        """One life after the other, until all is to be healed; the last one goes on."""
        random = self._random.stream(str(source))
        machines = [self._machine(source, number) for number in range(2)]
        alive = machines[0]
        self._start(source, alive, random)
        while not await self._stopped.is_set_within(random.uniform(1, 6)):
            if random.chance(0.2):
                self._cluster.say(f"{alive.name} sleeps")
                alive.freeze()
                await self._stopped.is_set_within(
                    random.uniform(1, 5)
                )  # Its transaction may time out.
                alive.thaw()
                continue
            if random.chance(0.5):
                self._cluster.say(f"{alive.name} is killed")
                alive.kill()
                if await self._stopped.is_set_within(random.uniform(0, 2)):
                    break
            else:
                await self._replace(source, machines, alive, random)
                alive = machines[1 - machines.index(alive)]
                continue
            self._start(source, alive, random)
        for machine in machines:
            if machine.is_running:
                machine.kill()
        self._start(source, machines[0], random)

    async def _replace(
        self, source: TopicPartition, machines: list[Machine], zombie: Machine, random: SimRandom
    ) -> None:
        """Another takes over its transactional id while it sleeps; then it wakes up."""
        other = machines[1 - machines.index(zombie)]
        self._cluster.say(f"{zombie.name} sleeps, {other.name} takes over")
        zombie.freeze()
        self._start(source, other, random)
        await self._stopped.is_set_within(random.uniform(0, 3))
        zombie.thaw()
        await self._stopped.is_set_within(random.uniform(0.5, 3))
        zombie.kill()

    def _machine(self, source: TopicPartition, number: int) -> Machine:
        return self._cluster.simulation.machine(f"t{source.partition + 1}{'x' * number}")

    def _start(self, source: TopicPartition, machine: Machine, random: SimRandom) -> None:
        if not machine.is_running:
            machine.start()
        name = machine.incarnation.name
        self._cluster.say(f"{name} copies {source}")
        machine.spawn(self._copy(source, machine, random.stream(name)))

    # -- copying ---------------------------------------------------------------------------------

    async def _copy(self, source: TopicPartition, machine: Machine, random: SimRandom) -> None:
        """Until it is fenced; after other errors with a new producer."""
        name = machine.incarnation.name
        while True:
            client = self._client(name)
            producer = TransactionalProducer(
                client,
                machine.clock,
                f"copier-{source.partition}",
                _PRODUCER,
                timeout_ms=_TIMEOUT_MS,
            )
            try:
                await producer.init_transactions()
                while True:
                    await self._copy_some(source, client, producer, name, random)
                    await asyncio.sleep(random.uniform(0, 0.3))
            except (BrokerError, OSError):
                pass
            was_fenced = producer.state is State.FATAL_ERROR
            await producer.close()
            await client.close()
            # A fenced one tries again late: the other is to have its turn.
            await asyncio.sleep(random.uniform(2, 6) if was_fenced else random.uniform(0, 1))

    async def _copy_some(
        self,
        source: TopicPartition,
        client: Cluster,
        producer: TransactionalProducer,
        name: str,
        random: SimRandom,
    ) -> None:
        """One transaction. Raises what ends the producer's use."""
        position = await self._position(source, client)
        async with Reader(client, {source: position}, _READ) as reader:
            fetched = await reader.read()
        records = [record for each in fetched for record in each.records]
        records = records[: random.choice((1, 2, 5))]
        if not records:
            return
        self._number += 1
        transaction = f"{name}/{self._number}"
        self._history.begin(transaction)
        producer.begin()
        try:
            await self._send(source, producer, name, transaction, records)
            if random.chance(self._dawdles_chance):
                await asyncio.sleep(random.uniform(2, 4))  # It may time out.
            offset = Offset(records[-1].offset + 1)
            await producer.send_offsets(GROUP, {source: offset})
            await (producer.abort() if random.chance(0.2) else producer.commit())
        except (BrokerError, OSError):
            await self._recover(producer)
        if producer.state is State.READY:
            end = self._history.committed if producer.was_committed else self._history.aborted
            end(transaction)

    @property
    def _dawdles_chance(self) -> float:
        if self._stopped.is_set():
            return 0.0  # All is to be copied soon.
        return _DAWDLES_OFTEN if self._workload.shape.dawdles else _DAWDLES_CHANCE

    async def _recover(self, producer: TransactionalProducer) -> None:
        """Raises if the outcome stays unknown."""
        if producer.state is State.COMMITTING:
            await producer.commit()
        else:
            await producer.abort()

    async def _position(self, source: TopicPartition, client: Cluster) -> Offset:
        coordinator = Coordinator(client, GROUP, shares_connection=True)
        found = await coordinator.ask(lambda: fetch_once(coordinator, [source], stable_only=True))
        return found.get(source, Offset(0))

    async def _send(
        self,
        source: TopicPartition,
        producer: TransactionalProducer,
        name: str,
        transaction: str,
        records: list[Record],
    ) -> None:
        sent = []
        for record in records:
            for target in self._targets:
                index = int(target.partition)
                value = copy_of(source, record.offset, transaction, index)
                write = self._history.send(
                    name, str(target), value, idempotent=True, transaction=transaction
                )
                sent.append((write, await producer.send(COPIES, value, partition=index)))
        for write, delivery in sent:
            _acked(write, (await delivery).offset)

    # -- readers ---------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Read the copies as they are committed, and now and then from some earlier offset on."""
        random = self._random.stream("auditor")
        reading = self._history.reader("auditor", committed_only=True)
        positions = dict.fromkeys(self._targets, Offset(0))
        while not self._stopped.is_set():
            client = self._client("auditor")
            for partition, position in positions.items():
                reading.start_at(str(partition), position)
            try:
                async with Reader(client, positions, _READ) as reader:
                    while not self._stopped.is_set():
                        for fetched in await reader.read():
                            for record in fetched.records:
                                reading.saw(
                                    str(fetched.partition), record.offset, record.value or b""
                                )
                            positions[fetched.partition] = fetched.next_offset
                        if random.chance(_SEEKS_CHANCE):
                            positions = {
                                each: Offset(random.below(position + 1))
                                for each, position in positions.items()
                            }
                            break
            except (BrokerError, OSError):
                await asyncio.sleep(0.5)
            await client.close()

    # -- in the end ------------------------------------------------------------------------------

    async def settle(self) -> None:
        """All is healed, and nobody else writes: everything is copied, and read once more."""
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        await self._observer.spawn(self._read_finally())
        for machine in self._cluster.simulation.machines.values():
            if machine.name.startswith("t") and machine.is_running:
                machine.kill()

    async def _read_finally(self) -> None:
        client = self._client("audit")
        ends = await list_offsets(client, dict.fromkeys(self._sources, LATEST))
        committed: dict[TopicPartition, Offset] = {}
        for _ in range(int(SETTLED_WITHIN_S / 0.5)):
            committed = await fetch_offsets(client, GROUP, self._sources)
            if all(committed.get(each, 0) >= ends[each].offset for each in self._sources):
                break
            await asyncio.sleep(0.5)
        else:
            raise NotHealed(f"copied up to {committed} of {ends} after {SETTLED_WITHIN_S:g} s")
        self.copies.committed = {str(each): offset for each, offset in committed.items()}
        for source in self._sources:
            found = await _read_all(client, source)
            self.copies.sources[str(source)] = [record.offset for record in found]
        for target in self._targets:
            # The group's offset may be visible before the copies are: each has its own marker.
            found = await _read_all(client, target)
            values = [(record.offset, record.value or b"") for record in found]
            self.copies.copies[str(target)] = [value for _, value in values]
            self._history.final(str(target), values)
        await client.close()


def _acked(write: Write, offset: int) -> None:
    write.acked(offset if offset >= 0 else None)


async def _read_all(client: Cluster, partition: TopicPartition) -> list[Record]:
    """Up to the end of the log: every transaction ends."""
    (end,) = (await list_offsets(client, {partition: LATEST})).values()
    records: list[Record] = []
    async with Reader(client, {partition: Offset(0)}, _READ) as reader:
        try:
            async with asyncio.timeout(SETTLED_WITHIN_S):
                while reader.positions[partition] < end.offset:
                    for fetched in await reader.read():
                        records += fetched.records
        except TimeoutError:
            read = reader.positions[partition]
            raise NotHealed(f"{partition} is stable up to {read} of {end.offset}") from None
    return records
