"""A topic that is created and deleted again and again, while requests of every kind use it.

Delayed fetches, produce requests that wait for acks, look-ups by time in a thread, syncs,
cleaning and retention: the responses do not matter. What matters is where records are stored, and
that nothing else is affected. Every batch is sent once, to the topic by its id: no record of a
deleted topic may appear in the next one of its name.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from simulation.workload_context import WorkloadContext
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.client.offsets import MAX_TIMESTAMP, list_offsets
from suwi.client.reader import Reader, ReadSettings
from suwi.env import Env
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.sim.random import SimRandom
from suwi.wire.produce import encode_produce_request
from suwi.wire.versions import APIS, ApiKey

CHURNED = "scratch"
_PARTITION = TopicPartition(CHURNED, PartitionIndex(0))
_VERSION = APIS[ApiKey.PRODUCE].max_version
_BATCH_RECORDS = 4
_AHEAD_MS = 100
"""The first record of a batch is this much newer than the rest: look-ups find it deleted."""
_LOOK_UPS_AT_ONCE = 4

_KINDS: tuple[dict[str, str], ...] = (
    {},
    {"flush.messages": "1"},
    {"retention.bytes": "1024", "segment.bytes": "1024"},
    {
        "cleanup.policy": "compact",
        "segment.bytes": "1024",
        "min.cleanable.dirty.ratio": "0.01",
        "flush.messages": "1",
    },
)


class Churn:
    def __init__(self, workload: WorkloadContext, env: Env, random: SimRandom) -> None:
        self._workload = workload
        self._env = env
        self._random = random
        self._client: Cluster = workload.client("churn")
        self._written_ms: list[int] = []
        self._deleted_ms: int | None = None
        """The time of the batch within which the log now starts."""

    async def run(self) -> None:
        while not await self._workload.stopped_within(self._random.uniform(0.2, 2)):
            await self._run_once()
        await self._client.close()

    async def _run_once(self) -> None:
        """Create, use and delete the topic; errors are ignored."""
        self._written_ms.clear()
        self._deleted_ms = None
        await self._workload.create(CHURNED, 1, self._random.choice(_KINDS))
        busy = [
            asyncio.create_task(_quietly(work))
            for work in (self._produce(), self._read(), self._produce())
        ]
        # Not before the clients' pause of up to half an hour has ended: it is used meanwhile.
        await asyncio.sleep(self._random.uniform(0.1, 2))
        await _quietly(self._disturb())
        look_ups = _LOOK_UPS_AT_ONCE if self._workload.shape.looks_up_deleted else 0
        busy += [asyncio.create_task(_quietly(self._look_up())) for _ in range(look_ups)]
        await asyncio.sleep(self._random.choice((0, 0.01, 0.1)))
        await _quietly(Admin(self._client).delete_topic(CHURNED))
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)

    async def _disturb(self) -> None:
        """Change its configuration, or delete records up to the middle of a batch."""
        admin = Admin(self._client)
        if self._random.chance(0.3):
            topic = Resource(ResourceType.TOPIC, CHURNED)
            await admin.alter_configs(topic, {"segment.bytes": "8192"})
        if self._written_ms and self._random.chance(0.8):
            number = self._random.below(len(self._written_ms))
            self._deleted_ms = self._written_ms[number]
            before = Offset(_BATCH_RECORDS * number + 2)
            await admin.delete_records({_PARTITION: before})

    async def _produce(self) -> None:
        """Several batches in flight, each sent once, with acks=all or acks=1."""
        link, place = await self._client.leader(_PARTITION)
        connection = await PeerConnection.open(link.address.host, link.address.port)
        acks = self._random.choice((-1, 1))
        try:
            while True:
                sent = []
                for _ in range(self._random.between(1, 3)):
                    topic = (CHURNED, place.topic.id, [(0, self._batch())])
                    body = encode_produce_request(_VERSION, None, acks, 2000, [topic])
                    sent.append(connection.send(ApiKey.PRODUCE, _VERSION, body))
                await asyncio.gather(*sent)
                await asyncio.sleep(self._random.uniform(0, 0.2))
        finally:
            connection.abort()

    def _batch(self) -> bytearray:
        now_ms = self._env.clock.now_ms()
        self._written_ms.append(now_ms)
        stamps = [now_ms + _AHEAD_MS] + [now_ms] * (_BATCH_RECORDS - 1)
        key = self._random.token(1)
        records = [Record(timestamp=t, key=key, value=self._random.token(24)) for t in stamps]
        return build_batch(
            records,
            # Compressed batches are decoded in a thread.
            codec=self._random.choice((Compression.NONE, Compression.GZIP, Compression.GZIP)),
        )

    async def _read(self) -> None:
        """A fetch waits at the end of the log most of the time."""
        settings = ReadSettings(max_wait_ms=self._random.choice((100, 2000)))
        async with Reader(self._client, {_PARTITION: Offset(0)}, settings) as reader:
            while True:
                await reader.read()

    async def _look_up(self) -> None:
        while True:
            asked = MAX_TIMESTAMP
            if self._deleted_ms is not None and self._random.chance(0.7):
                asked = self._deleted_ms + _AHEAD_MS // 2
            elif self._written_ms and self._random.chance(0.8):
                asked = self._random.choice(self._written_ms) + _AHEAD_MS // 2
            await list_offsets(self._client, {_PARTITION: asked})
            await asyncio.sleep(self._random.choice((0, 0.01)))


async def _quietly(work: Awaitable[object]) -> None:
    with suppress(BrokerError, OSError, TimeoutError):
        await work
