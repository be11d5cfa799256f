"""A producer that sends records to partitions in batches.

`send` takes a record and returns a `Delivery` to await; `flush` waits for all. With acks=all the
producer is idempotent: a retried batch is stored once. With acks=1 a retry may store it twice, and
with acks=0 errors are not reported.
Invariant: records of one partition are stored in the order of their `send`.
"""

import asyncio

from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.delivery import Delivery, OutgoingBatch, record_bytes
from suwi.client.errors import is_transient
from suwi.client.identity import Identities
from suwi.client.partition_sender import PartitionSender, ProducerSettings
from suwi.client.partitioner import StickyPartitions, partition_of_key
from suwi.client.retry import Retry
from suwi.env import Clock
from suwi.model.errors import UnknownTopicOrPartition
from suwi.model.ids import NO_NODE, NO_OFFSET, PartitionIndex, TopicPartition
from suwi.records.record import Headers, Record


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        settings: ProducerSettings | None = None,
        identities: Identities | None = None,
    ) -> None:
        """`identities`: those of a transactional producer (`transactions.py`)."""
        self._cluster = cluster
        self._clock = clock
        self._settings = settings or ProducerSettings()
        self._identities = identities or Identities(cluster)
        self._sticky = StickyPartitions(cluster.random)
        self._senders: dict[TopicPartition, PartitionSender] = {}
        self._buffered_bytes = 0
        self._has_room = asyncio.Event()

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.flush()
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Add a record to a batch; waits only for metadata and for buffer space.

        Raises `UnknownTopicOrPartition`, other `BrokerError`s and OSError.
        """
        while self._buffered_bytes >= self._settings.buffer_bytes:
            self._has_room.clear()
            await self._has_room.wait()
        info = await self._topic(topic)
        now_ms = self._clock.now_ms() if timestamp is None else timestamp
        record = Record(NO_OFFSET, now_ms, key, value, headers)
        size_bytes = record_bytes(record)
        if partition is not None:
            info.partition(partition)
        else:
            partition = self._choose(info, key, size_bytes)
        delivery, is_complete = self._sender(topic, partition).add(record, size_bytes)
        self._buffered_bytes += size_bytes
        if is_complete:
            await asyncio.sleep(0)  # let batches leave even if the caller never awaits
        return delivery

    async def flush(self) -> None:
        """Return when every record is delivered or has failed."""
        await asyncio.gather(*(sender.finish() for sender in self._senders.values()))

    async def close(self) -> None:
        """Fail all records that are not delivered yet."""
        await asyncio.gather(*(sender.abort() for sender in self._senders.values()))

    async def _topic(self, name: str) -> TopicInfo:
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            try:
                return await self._cluster.topic(name)
            except UnknownTopicOrPartition:
                raise
            except Exception as error:
                if not is_transient(error):
                    raise
                await retry.pause_or_raise(error)

    def _choose(self, topic: TopicInfo, key: bytes | None, size_bytes: int) -> int:
        if key is not None:
            return partition_of_key(key, len(topic.partitions))
        available = _available(topic)
        partition = self._sticky.choose(topic.name, available)
        if self._sender(topic.name, partition).begins_batch_with(size_bytes):
            self._sticky.move_on(topic.name, partition, available)
            partition = self._sticky.choose(topic.name, available)
        return partition

    def _sender(self, topic: str, index: int) -> PartitionSender:
        partition = TopicPartition(topic, PartitionIndex(index))
        partition_sender = self._senders.get(partition)
        if partition_sender is None:
            partition_sender = PartitionSender(
                self._cluster, self._identities, self._settings, partition, self._batch_done
            )
            self._senders[partition] = partition_sender
        return partition_sender

    def _batch_done(self, batch: OutgoingBatch) -> None:
        self._buffered_bytes -= batch.size_bytes
        self._has_room.set()


def _available(topic: TopicInfo) -> list[int]:
    """The partitions that have a leader; all if none has one."""
    led = [p.index for p in topic.partitions if p.leader != NO_NODE]
    return list(led or range(len(topic.partitions)))
