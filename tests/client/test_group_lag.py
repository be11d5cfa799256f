"""The lag of groups in records and in time."""

from suwi.client.group_lag import find_lags
from suwi.client.producer import Producer
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from tests.client.fakes import TOPIC, FakeCluster, on_fake_cluster


def test_a_damaged_batch_leaves_only_the_age_of_its_partition_unknown() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            async with Producer(cluster, fake.machines[0].clock) as producer:
                for partition in (0, 1):
                    await producer.send(TOPIC, b"x", partition=partition, timestamp=5_000)
            damaged = bytearray(fake.logs[0].batches[0])
            damaged[-1] ^= 1
            fake.logs[0].batches[0] = bytes(damaged)
            committed = {TopicPartition(TOPIC, PartitionIndex(i)): Offset(0) for i in (0, 1)}
            lags = await find_lags(cluster, committed)
        assert [lag.records for lag in lags.values()] == [1, 1]
        assert [lag.first_unread_ms for lag in lags.values()] == [None, 5_000]

    on_fake_cluster(scenario, partitions=2)
