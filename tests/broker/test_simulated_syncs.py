"""When logs are synced, in simulated time."""

import asyncio
import errno

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.log.checkpoints import read_offsets
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, produce
from tests.broker.test_simulated_cluster import run, until
from tests.broker.test_simulated_losses import create_orders, write

TOPIC = "orders"
_TOPIC_RESOURCE = 2
_SET = 0


async def _set(client: PeerConnection, key: str, value: str) -> None:
    answer = await client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {
            "resources": [
                {
                    "resource_type": _TOPIC_RESOURCE,
                    "resource_name": TOPIC,
                    "configs": [{"name": key, "config_operation": _SET, "value": value}],
                }
            ],
            "validate_only": False,
        },
    )
    assert answer.responses[0].error_code == 0, answer


def test_an_idle_log_is_synced_after_flush_ms_is_changed() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        assert (await produce(client, TOPIC, [b"a"])).error_code == 0
        assert broker.broker is not None
        log = broker.broker.replicas.leader_of(TOPIC, 0).log
        await asyncio.sleep(60)
        assert log.recovery_point == 0, "no sync is due"
        await _set(client, "flush.ms", "500")
        await asyncio.sleep(10)
        assert log.recovery_point == 1

    simulation.run(scenario())


def test_a_follower_that_cannot_sync_acknowledges_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], flush_messages="1", min_insync_replicas="2")
        faults = cluster[2].machine.disk.faults
        faults.fail("sync", errno.EMFILE, path="*orders-0*", times=None)
        leader = cluster[1].broker
        assert leader is not None
        partition = leader.replicas.leader_of(TOPIC, 0)
        writing = asyncio.ensure_future(write(cluster, 1, [b"a"]))
        await until(lambda: partition.log.end_offset == 1)
        await asyncio.sleep(3)
        assert partition.high_watermark == 0
        assert await writing == ErrorCode.not_enough_replicas_after_append
        faults.clear()
        await until(lambda: partition.high_watermark == 1)

    run(scenario, 1)


def test_acks_1_waits_for_the_sync_of_the_leader_and_not_for_the_followers() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], flush_messages="1", min_insync_replicas="2")
        leader = cluster[1].broker
        assert leader is not None
        partition = leader.replicas.leader_of(TOPIC, 0)
        cluster[2].freeze()
        assert await write(cluster, 1, [b"a"], acks=1) == ErrorCode.none
        assert partition.log.recovery_point == 1
        assert partition.high_watermark == 0
        faults = cluster[1].machine.disk.faults
        faults.fail("sync", errno.EMFILE, path="*orders-0*", times=None)
        assert await write(cluster, 1, [b"b"], acks=1) == ErrorCode.kafka_storage_error
        faults.clear()
        cluster[2].thaw()
        await until(lambda: partition.high_watermark == 2)

    run(scenario, 1)


def test_the_recovery_point_is_written_where_each_message_is_flushed() -> None:
    """Else the whole log is read again after a crash."""
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        await _set(client, "flush.messages", "1")
        assert (await produce(client, TOPIC, [b"a", b"b"])).error_code == 0
        assert broker.broker is not None
        (directory,) = broker.broker.directories
        assert directory.checkpoints.recovery_points == {}
        await asyncio.sleep(70)
        path = f"{directory.path}/recovery-point-offset-checkpoint"
        written = read_offsets(broker.machine.disk, path)
        assert written == {TopicPartition(TOPIC, PartitionIndex(0)): 2}
        before = broker.machine.disk.modified_ms(path)
        await asyncio.sleep(300)
        assert broker.machine.disk.modified_ms(path) == before, "nothing has moved"

    simulation.run(scenario())
