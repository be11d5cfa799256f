"""The reader while leaders move, fail and lose their topics."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from suwi.client.cluster import Cluster
from suwi.client.errors import Unreachable
from suwi.client.fetching import ReadSettings
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.producer import Producer
from suwi.client.reader import Reader, TopicReplaced
from suwi.model.errors import OffsetOutOfRange, UnknownTopicOrPartition
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from tests.client.fakes import TOPIC, FakeCluster, on_fake_cluster


def partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, PartitionIndex(number))


async def fill(fake: FakeCluster, cluster: Cluster, *values: bytes, to: int = 0) -> None:
    async with Producer(cluster, fake.machines[-1].clock) as producer:
        for value in values:
            await producer.send(TOPIC, value, partition=to)


async def values_of(reader: Reader, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with asyncio.timeout(30):  # in virtual time
        while len(values) < count:
            for fetched in await reader.read():
                values += [record.value for record in fetched.records]
    return values


def run(scenario: Coroutine[Any, Any, None], simulation: Simulation) -> None:
    simulation.run(scenario)


def test_each_record_is_returned_once_while_leaders_move_and_fail() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.leaders = [0, 1]
        async with fake.client() as cluster, fake.client() as other:
            positions = {partition(0): Offset(0), partition(1): Offset(0)}
            async with Reader(cluster, positions) as reader:
                await fill(fake, other, b"a0", to=0)
                await fill(fake, other, b"b0", to=1)
                assert set(await values_of(reader, 2)) == {b"a0", b"b0"}
                fake.move_leader(2, 0)
                await fill(fake, other, b"a1", to=0)
                assert await values_of(reader, 1) == [b"a1"]
                fake.machines[1].kill()
                fake.move_leader(0, 1)
                await fill(fake, other, b"b1", to=1)
                assert await values_of(reader, 1) == [b"b1"]
                fake.simulation.network.reset("outside")
                await fill(fake, other, b"a2", to=0)
                assert await values_of(reader, 1) == [b"a2"]

    on_fake_cluster(scenario, seed=5, brokers=3, partitions=2)


def test_a_failed_leader_does_not_delay_the_records_of_another() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.leaders = [0, 1]
        async with fake.client() as cluster, fake.client() as other:
            positions = {partition(0): Offset(0), partition(1): Offset(0)}
            async with Reader(cluster, positions) as reader:
                await reader.read()
                fake.machines[0].power_off()
                await fill(fake, other, b"x", to=1)
                began_s = fake.simulation.loop.time()
                assert await values_of(reader, 1) == [b"x"]
                assert fake.simulation.loop.time() - began_s < 5

    on_fake_cluster(scenario, brokers=2, partitions=2)


def test_a_reader_raises_after_the_retry_timeout_if_no_broker_returns() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with (
            fake.client(retry_timeout_s=20) as cluster,
            Reader(cluster, {partition(0): Offset(0)}) as reader,
        ):
            await reader.read()
            fake.machines[0].kill()
            with pytest.raises(Unreachable, match="connection refused"):
                await values_of(reader, 1)

    on_fake_cluster(scenario, brokers=1)


def test_a_reader_continues_when_the_broker_is_back() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, Reader(cluster, {partition(0): Offset(0)}) as reader:
            await reader.read()
            fake.machines[0].kill()
            reading = asyncio.create_task(values_of(reader, 1))
            await asyncio.sleep(10)
            await fake.start_broker(0)
            await fill(fake, cluster, b"x")
            assert await reading == [b"x"]

    on_fake_cluster(scenario, brokers=1)


def test_an_offset_out_of_range_is_raised() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, Reader(cluster, {partition(0): Offset(9)}) as reader:
            with pytest.raises(OffsetOutOfRange, match="orders-0 has no offset 9"):
                await reader.read()

    on_fake_cluster(scenario)


def test_a_topic_that_is_deleted_or_replaced_ends_the_reading() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, Reader(cluster, {partition(0): Offset(0)}) as reader:
            await reader.read()
            fake.topic_id = UUID(int=8)
            with pytest.raises(TopicReplaced):
                await reader.read()
            fake.topic_id = None
            cluster.mark_stale(TOPIC)
            with pytest.raises(UnknownTopicOrPartition):
                await reader.read()

    on_fake_cluster(scenario)


def test_the_preferred_read_replica_is_used_until_it_fails() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.nearest = 2
        settings = ReadSettings(rack="here")
        async with (
            fake.client() as cluster,
            fake.client() as other,
            Reader(cluster, {partition(0): Offset(0)}, settings) as reader,
        ):
            await fill(fake, other, b"a")
            assert await values_of(reader, 1) == [b"a"]
            await fill(fake, other, b"b")
            assert await values_of(reader, 1) == [b"b"]
            fake.machines[2].kill()  # the leader has not noticed yet
            await fill(fake, other, b"c")
            assert await values_of(reader, 1) == [b"c"]
            fake.nearest = 1
            await fill(fake, other, b"d")
            assert await values_of(reader, 1) == [b"d"]
            fake.nearest = None  # it is not a replica any more and responds with an error
            await fill(fake, other, b"e")
            assert await values_of(reader, 1) == [b"e"]
            assert fake.fetched_at == [2, 2, 0, 1, 0]

    on_fake_cluster(scenario, brokers=3)


def test_list_offsets_is_retried_after_leaders_moved() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.leaders = [0, 1]
        async with fake.client() as cluster:
            await fill(fake, cluster, b"x", b"y")
            fake.machines[0].kill()
            fake.move_leader(2, 0)
            found = await list_offsets(cluster, {partition(0): LATEST, partition(1): EARLIEST})
            assert {p.partition: f.offset for p, f in found.items()} == {0: 2, 1: 0}

    on_fake_cluster(scenario, brokers=3, partitions=2)


def test_the_error_names_every_address_that_was_tried() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        fake = FakeCluster(simulation, brokers=2)
        async with fake.client() as cluster:
            with pytest.raises(Unreachable) as raised:
                await cluster.topics()
            assert "b0:9092: connection refused; b1:9092: connection refused" in str(raised.value)

    run(scenario(), simulation)


def test_one_of_several_addresses_is_enough() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        fake = FakeCluster(simulation, brokers=2)
        await fake.start_broker(1)
        async with fake.client() as cluster:
            assert (await cluster.topic(TOPIC)).name == TOPIC

    run(scenario(), simulation)
