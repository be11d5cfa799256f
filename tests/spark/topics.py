"""Topics for tests: made and filled with the client."""

import asyncio
from collections.abc import Sequence
from typing import Any

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.fetching import ReadSettings
from suwi.client.offsets import LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.env import local_env
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.records.compression import Compression
from suwi.records.record import Record
from tests.broker_process import unique_name


def make_topic(
    address: str,
    *,
    partitions: int = 1,
    word: str = "topic",
    name: str | None = None,
    **configs: str,
) -> str:
    """Records may be of any age: nothing is removed unless a test says so."""
    name = name or unique_name(word)
    given = {"retention_ms": "-1", **configs}
    settings = {key.replace("_", "."): value for key, value in given.items()}

    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic(name, partitions=partitions, configs=settings)

    _run(address, work)
    return name


def add_partitions(address: str, topic: str, partitions: int) -> None:
    _run(address, lambda cluster: Admin(cluster).add_partitions(topic, partitions))


def delete_topic(address: str, topic: str) -> None:
    _run(address, lambda cluster: Admin(cluster).delete_topic(topic))


def delete_before(address: str, topic: str, offset: int, *, partition: int = 0) -> None:
    """What retention does, at once."""
    where = {TopicPartition(topic, PartitionIndex(partition)): Offset(offset)}
    _run(address, lambda cluster: Admin(cluster).delete_records(where))


def fill(
    address: str,
    topic: str,
    records: Sequence[Record | bytes],
    *,
    partition: int = 0,
    codec: Compression = Compression.NONE,
) -> None:
    """Records in their order; an offset that a record names is not looked at."""

    async def work(cluster: Cluster) -> None:
        settings = ProducerSettings(codec=codec)
        async with Producer(cluster, local_env().clock, settings) as producer:
            for each in records:
                record = Record(value=each) if isinstance(each, bytes) else each
                await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=partition,
                    timestamp=None if record.timestamp < 0 else record.timestamp,
                )

    _run(address, work)


def committed_values(address: str, topic: str) -> list[str]:
    """What those see who read committed records, sorted."""

    async def work(cluster: Cluster) -> list[str]:
        partitions = (await cluster.topic(topic)).partitions
        places = [TopicPartition(topic, PartitionIndex(i)) for i in range(len(partitions))]
        ends = await list_offsets(cluster, dict.fromkeys(places, LATEST), committed_only=True)
        found: list[str] = []
        settings = ReadSettings(committed_only=True)
        async with Reader(cluster, dict.fromkeys(places, Offset(0)), settings) as reader:
            while any(reader.positions[place] < ends[place].offset for place in places):
                for fetched in await reader.read():
                    found += [(record.value or b"").decode() for record in fetched.records]
        return sorted(found)

    values: list[str] = _run(address, work)
    return values


def _run(address: str, work: Any) -> Any:
    async def run() -> Any:
        async with Cluster(parse_addresses(address), random=local_env().random) as cluster:
            return await work(cluster)

    return asyncio.run(run())
