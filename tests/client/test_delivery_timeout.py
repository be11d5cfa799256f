"""What becomes of batches that could not be sent within the delivery timeout."""

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.model.errors import RequestTimedOut
from tests.client.fakes import TOPIC, FakeCluster, always, header, on_fake_cluster


def test_batches_that_waited_too_long_fail_without_an_attempt_and_leave_no_gap() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(delivery_timeout_s=1, batch_bytes=1)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                await (await producer.send(TOPIC, b"a"))
                fake.obstacles.append(always(ErrorCode.not_enough_replicas))
                fake.simulation.network.slow("b0", 1000)
                _, *waiting = [await producer.send(TOPIC, b"late") for _ in range(20)]
                await producer.flush()
                for delivery in waiting:
                    with pytest.raises(RequestTimedOut, match="not sent within 1 s"):
                        await delivery
                fake.simulation.network.slow("b0", 0)
                await (await producer.send(TOPIC, b"b"))
        assert [record.value for record in fake.logs[0].records] == [b"a", b"b"]
        assert [header(batch).base_sequence for batch in fake.logs[0].batches] == [0, 1]

    on_fake_cluster(scenario)


def test_a_silent_leader_delays_all_waiting_batches_together_by_one_attempt() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(delivery_timeout_s=1, request_timeout_s=5, batch_bytes=1)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                await (await producer.send(TOPIC, b"a"))
                fake.simulation.network.partition(["outside"], ["b0"])
                for _ in range(20):
                    await producer.send(TOPIC, b"late")
                began_s = fake.simulation.loop.time()
                await producer.flush()
                assert fake.simulation.loop.time() - began_s < 15

    on_fake_cluster(scenario, brokers=1)
