"""A topic beside the one that readers and copiers use: its records may vanish.

It is compacted, keeps few bytes, has its records deleted, or may elect unclean leaders, as the
mechanisms of the run need. An idempotent writer and, beside copiers, a transactional one use it.
The budget: records have keys of their own, so that compaction keeps each of them; a record that was
acknowledged is there at the end unless it is below the log start or in a reported loss. Only the
record that is overwritten all the time is not expected, and nothing of transactions, which the
copies check. With unclean elections there are none: one may lose a marker, as in Apache Kafka.
"""

import asyncio
from contextlib import suppress

from simulation.history import ACKS_ALL, Write
from simulation.workload_context import WorkloadContext
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivery
from suwi.client.fetching import ReadSettings
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.client.transactions import State, TransactionalProducer
from suwi.env import Env
from suwi.model.errors import BrokerError, OffsetOutOfRange
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim.random import SimRandom

SIDE_TOPIC = "side"
_PARTITION = TopicPartition(SIDE_TOPIC, PartitionIndex(0))
_SETTINGS = ProducerSettings(delivery_timeout_s=8, request_timeout_s=4)
_READ = ReadSettings(max_wait_ms=300, committed_only=True)
_HIGH_WATERMARK = Offset(-1)
_TIMEOUT_MS = 2500
_DAWDLES_CHANCE = 0.1
_AT_ONCE_MAX = 8
_PADDING = "." * 60
"""So that segments are full soon."""
_READ_WITHIN_S = 60.0


class SideTopic:
    def __init__(self, workload: WorkloadContext, env: Env, random: SimRandom) -> None:
        self._workload = workload
        self._shape = workload.shape
        self._env = env
        self._random = random

    async def create(self) -> None:
        policies = ["compact"] * self._shape.compacts
        configs = {"segment.bytes": "1024"}
        if self._shape.retains:
            configs["retention.bytes"] = "1024"
        if self._shape.compacts:
            policies += ["delete"] * (self._shape.retains or self._shape.deletes)
            configs["cleanup.policy"] = ",".join(policies)
            configs["min.cleanable.dirty.ratio"] = "0.01"
        if self._shape.unclean_side:
            configs["unclean.leader.election.enable"] = "true"
        await self._workload.create(SIDE_TOPIC, 1, configs)

    @property
    def _loses_unnoticed(self) -> bool:
        """Compacted logs are not inspected: nobody knows what an unclean election loses of them.
        Even so each record is there once at most, and in its order."""
        is_unclean = self._shape.unclean_side or self._shape.unclean_elections
        return self._shape.compacts and is_unclean

    async def run(self) -> None:
        clients = [self._write()]
        if self._shape.copiers and not self._shape.unclean_side:
            clients.append(self._write_in_transactions())
        if self._shape.deletes and not self._shape.compacts:
            clients.append(self._delete())
        await asyncio.gather(*clients)

    async def _write(self) -> None:
        random = self._random.stream("writer")
        client = self._workload.client("side")
        producer = Producer(client, self._env.clock, _SETTINGS)
        waiting: list[asyncio.Task[None]] = []
        number = 0
        while not await self._workload.stopped_within(random.uniform(0, 0.4)):
            for _ in range(random.choice((1, 2, 4))):
                is_noise = random.chance(0.4)
                is_promised = not is_noise and not self._loses_unnoticed
                value = f"side:{number}:{_PADDING}".encode()
                number += 1
                # What is overwritten is not promised to anybody.
                write = self._workload.history.send(
                    "side",
                    str(_PARTITION),
                    value,
                    acks=ACKS_ALL if is_promised else 1,
                    idempotent=True,
                )
                key = b"noise" if is_noise else value
                with suppress(BrokerError, OSError):
                    sent = await producer.send(SIDE_TOPIC, value, key=key, partition=0)
                    waiting.append(asyncio.create_task(self._wait(write, sent)))
            waiting = [task for task in waiting if not task.done()]
            if len(waiting) > _AT_ONCE_MAX:
                await asyncio.wait(waiting)
        if waiting:
            await asyncio.wait(waiting)
        await producer.close()
        await client.close()

    async def _wait(self, write: Write, sent: Delivery) -> None:
        with suppress(BrokerError, OSError):
            offset = (await sent).offset
            is_kept = offset >= 0 and not self._loses_unnoticed
            write.acked(offset if is_kept else None)

    async def _write_in_transactions(self) -> None:
        random = self._random.stream("transactions")
        number = 0
        while not await self._workload.stopped_within(random.uniform(0, 1)):
            client = self._workload.client("side transactions")
            producer = TransactionalProducer(
                client, self._env.clock, "side", _SETTINGS, timeout_ms=_TIMEOUT_MS
            )
            with suppress(BrokerError, OSError):
                await producer.init_transactions()
                while not await self._workload.stopped_within(random.uniform(0, 0.5)):
                    number += 1
                    await self._transaction(producer, number, random)
            if producer.state is not State.READY:
                with suppress(BrokerError, OSError):
                    await producer.abort()
            await producer.close()
            await client.close()

    async def _transaction(
        self, producer: TransactionalProducer, number: int, random: SimRandom
    ) -> None:
        producer.begin()
        for index in range(random.between(1, 3)):
            value = f"side transaction:{number}:{index}".encode()
            self._workload.history.send("side transactions", str(_PARTITION), value, acks=1)
            await producer.send(SIDE_TOPIC, value, key=value, partition=0)
        if random.chance(_DAWDLES_CHANCE):
            await asyncio.sleep(random.uniform(2, 4))  # It may time out.
        await (producer.abort() if random.chance(0.3) else producer.commit())

    async def _delete(self) -> None:
        """Up to the high watermark, which may be in the middle of an open transaction."""
        random = self._random.stream("delete")
        client = self._workload.client("side delete")
        while not await self._workload.stopped_within(random.uniform(0.5, 3)):
            with suppress(BrokerError, OSError):
                await Admin(client).delete_records({_PARTITION: _HIGH_WATERMARK})
        await client.close()

    async def read_finally(self) -> None:
        """Everything for the history: every transaction has ended."""
        client = self._workload.client("side final")
        is_read = False
        async with asyncio.timeout(_READ_WITHIN_S):
            while not is_read:
                with suppress(OffsetOutOfRange):  # Retention goes on.
                    await self._read_all(client)
                    is_read = True
        await client.close()

    async def _read_all(self, client: Cluster) -> None:
        start, end = [
            (await list_offsets(client, {_PARTITION: asked}))[_PARTITION].offset
            for asked in (EARLIEST, LATEST)
        ]
        found: list[tuple[int, bytes]] = []
        async with Reader(client, {_PARTITION: start}, _READ) as reader:
            while reader.positions[_PARTITION] < end:
                for fetched in await reader.read():
                    found += [(each.offset, each.value or b"") for each in fetched.records]
        self._workload.history.final(str(_PARTITION), found, start=start)
