"""A transactional producer for tests of commands."""

import asyncio
import time

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.partition_sender import ProducerSettings
from suwi.client.transactions import TransactionalProducer
from suwi.env import SystemClock, local_env
from suwi.records.builder import build_batch
from suwi.records.record import Record
from tests.cli.support import Suwi
from tests.raw_client import Produced, RawClient

COMMIT, ABORT, OPEN = "commit", "abort", "open"
_LIMIT_S = 120


def transact(address: str, transactional_id: str, topic: str, *ends: str) -> None:
    """One transaction with one record in partition 0 for each of `ends`: COMMIT, ABORT, OPEN."""
    asyncio.run(asyncio.wait_for(_transact(address, transactional_id, topic, ends), _LIMIT_S))


async def _transact(address: str, transactional_id: str, topic: str, ends: tuple[str, ...]) -> None:
    async with Cluster(parse_addresses(address), random=local_env().random) as cluster:
        settings = ProducerSettings(linger_s=0)
        producer = TransactionalProducer(cluster, SystemClock(), transactional_id, settings)
        await producer.init_transactions()
        for end in ends:
            producer.begin()
            await (await producer.send(topic, end.encode(), partition=0))
            if end == COMMIT:
                await producer.commit()
            elif end == ABORT:
                await producer.abort()
        await producer.close()


def write_late(suwi: Suwi, topic: str, transactional_id: str, offset: int) -> None:
    """A batch after the end of the last transaction, which nobody ends. The broker must not
    verify transactions."""
    (known,) = suwi.json("transactions", "describe", transactional_id)
    late = build_batch(
        [Record(value=b"late", timestamp=int(time.time() * 1000))],
        producer_id=known["producer_id"],
        producer_epoch=known["producer_epoch"],
        base_sequence=0,
        transactional=True,
    )
    with RawClient(suwi.broker) as client:
        sent = client.produce(topic, late, version=9, transactional_id=transactional_id)
        assert sent == Produced(error=0, base_offset=offset)
