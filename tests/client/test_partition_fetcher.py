"""Fetching raw batches of one partition while leaders move, fail and lose their topics."""

import asyncio
from uuid import UUID

import pytest

from suwi.client.cluster import Cluster
from suwi.client.errors import Unreachable
from suwi.client.fetching import PartitionFetcher, ReadSettings, TopicReplaced
from suwi.client.isolation_filter import visible_records
from suwi.client.producer import Producer
from suwi.model.errors import OffsetOutOfRange, UnknownTopicOrPartition
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from tests.client.fakes import TOPIC, FakeCluster, on_fake_cluster

PARTITION = TopicPartition(TOPIC, PartitionIndex(0))


async def fill(fake: FakeCluster, cluster: Cluster, *values: bytes) -> None:
    async with Producer(cluster, fake.machines[-1].clock) as producer:
        for value in values:
            await producer.send(TOPIC, value, partition=0)


async def values_at(fetcher: PartitionFetcher, offset: int) -> list[bytes | None]:
    fetched = await fetcher.fetch(Offset(offset))
    assert isinstance(fetched.records, bytes | memoryview)
    return [record.value for record in visible_records(fetched.records, Offset(offset)).records]


def test_a_leader_that_moved_or_failed_is_followed() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, fake.client() as other:
            fetcher = PartitionFetcher(cluster, PARTITION)
            await fill(fake, other, b"a")
            assert await values_at(fetcher, 0) == [b"a"]
            fake.move_leader(1)
            await fill(fake, other, b"b")
            assert await values_at(fetcher, 1) == [b"b"]
            fake.machines[1].kill()
            fetching = asyncio.create_task(values_at(fetcher, 1))
            await asyncio.sleep(5)  # in virtual time; there is no leader meanwhile
            fake.move_leader(2)
            assert await fetching == [b"b"]

    on_fake_cluster(scenario, seed=3, brokers=3)


def test_an_unreachable_broker_is_an_error_after_the_retry_timeout() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client(retry_timeout_s=20) as cluster:
            fetcher = PartitionFetcher(cluster, PARTITION)
            await fetcher.fetch(Offset(0))
            fake.machines[0].kill()
            with pytest.raises(Unreachable, match="connection refused"):
                await fetcher.fetch(Offset(0))

    on_fake_cluster(scenario, brokers=1)


def test_errors_that_are_not_retriable_are_raised_at_once() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            fetcher = PartitionFetcher(cluster, PARTITION)
            with pytest.raises(OffsetOutOfRange, match="orders-0 has no offset 9"):
                await fetcher.fetch(Offset(9))
            nowhere = TopicPartition("nowhere", PartitionIndex(0))
            with pytest.raises(UnknownTopicOrPartition):
                await PartitionFetcher(cluster, nowhere).fetch(Offset(0))

    on_fake_cluster(scenario)


def test_a_recreated_topic_is_not_mistaken_for_the_old_one() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            fetcher = PartitionFetcher(cluster, PARTITION)
            await fetcher.fetch(Offset(0))
            fake.topic_id = UUID(int=8)
            with pytest.raises(TopicReplaced):
                await fetcher.fetch(Offset(0))

    on_fake_cluster(scenario)


def test_the_preferred_read_replica_is_used_until_it_fails() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.nearest = 2
        async with fake.client() as cluster:
            await fill(fake, cluster, b"a")
            far = PartitionFetcher(cluster, PARTITION)
            near = PartitionFetcher(cluster, PARTITION, ReadSettings(rack="here"))
            assert await values_at(far, 0) == [b"a"]
            assert await values_at(near, 0) == await values_at(near, 0) == [b"a"]
            assert fake.fetched_at == [0, 2, 2]
            fake.machines[2].kill()  # the leader has not noticed yet
            assert await values_at(near, 0) == [b"a"]
            fake.nearest = 1
            assert await values_at(near, 0) == [b"a"]
            fake.nearest = None  # it is not a replica any more and responds with an error
            assert await values_at(near, 0) == [b"a"]
            assert fake.fetched_at == [0, 2, 2, 0, 1, 0]

    on_fake_cluster(scenario, brokers=3)
