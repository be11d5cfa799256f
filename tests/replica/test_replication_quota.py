"""Throttled replicas copy no faster than the brokers' rates; others are not affected."""

import asyncio
from collections.abc import Awaitable, Callable

from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.connection import PeerConnection
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.model.topic_config import TopicConfig, parse_topic_config
from suwi.replica.replication_quota import ReplicationQuota, ReplicationQuotas
from suwi.sim import Simulation
from suwi.sim import run as simulate
from suwi.sim.cluster import SimCluster
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import controller, create, state, until

_RATE = 10_000
_RECORDS = 20
_RECORD_BYTES = 5_000


def test_a_quota_allows_its_rate_and_waits_for_what_was_too_much() -> None:
    async def scenario() -> None:
        rate = 1000
        quota = ReplicationQuota(lambda: rate)
        assert quota.wait_s() == 0
        quota.record(3000)
        assert quota.wait_s() == 2
        await asyncio.sleep(1)
        assert quota.wait_s() == 1
        rate = 2000
        assert quota.wait_s() == 0.5
        await asyncio.sleep(100)
        quota.record(2000)
        assert quota.wait_s() == 0
        quota.record(1)
        assert quota.wait_s() > 0

    simulate(scenario())


def test_a_quota_applies_to_the_listed_replicas_of_this_broker_only() -> None:
    config = DynamicBrokerConfig(parse_broker_config({}).config)
    quotas = ReplicationQuotas(NodeId(1), config)

    def throttled(index: int, **lists: str) -> tuple[bool, bool]:
        keys = {f"{side}.replication.throttled.replicas": text for side, text in lists.items()}
        found = quotas.of(
            TopicPartition("orders", PartitionIndex(index)), parse_topic_config(keys, TopicConfig())
        )
        return found.leader is not None, found.follower is not None

    assert throttled(0) == (False, False)
    assert throttled(0, leader="0:1,1:2", follower="1:1") == (True, False)
    assert throttled(1, leader="0:1,1:2", follower="1:1") == (False, True)
    assert throttled(7, leader="*", follower="*") == (True, True)


def _copy_s(throttle: Callable[[SimCluster, Admin], Awaitable[None]]) -> float:
    """How long it takes to move a partition with 100 kB to another broker."""
    simulation = Simulation(1)

    async def main() -> float:
        cluster = SimCluster(simulation, settings={"replica.fetch.max.bytes": "6000"})
        await cluster.start()
        client = cluster.client("admin")
        await create(client, assignments=[[1]])
        connection = await PeerConnection.open("b1", 9092)
        for _ in range(_RECORDS):
            assert (await produce(connection, "orders", [bytes(_RECORD_BYTES)])).error_code == 0
        admin = Admin(client)
        await throttle(cluster, admin)
        began_s = simulation.loop.time()
        await admin.reassign({TopicPartition("orders", PartitionIndex(0)): [2]})
        await until(lambda: not state(cluster, seen_by=controller(cluster)).is_reassigning)
        connection.abort()
        await client.close()
        return simulation.loop.time() - began_s

    return simulation.run(main())


def _limits(side: str, node: int, replicas: str) -> Callable[[SimCluster, Admin], Awaitable[None]]:
    async def throttle(cluster: SimCluster, admin: Admin) -> None:
        rate = {f"{side}.replication.throttled.rate": str(_RATE)}
        await admin.alter_configs(Resource(ResourceType.BROKER, str(node)), rate)
        listed = {f"{side}.replication.throttled.replicas": replicas}
        await admin.alter_configs(Resource(ResourceType.TOPIC, "orders"), listed)
        await asyncio.sleep(1)

    return throttle


def test_throttled_leaders_and_followers_copy_at_their_rate() -> None:
    least_s = (_RECORDS * _RECORD_BYTES / _RATE) * 0.8  # The burst is one second.
    assert least_s < _copy_s(_limits("leader", 1, "0:1")) < 3 * least_s
    assert least_s < _copy_s(_limits("follower", 2, "0:2")) < 3 * least_s


def test_a_replica_that_is_not_listed_is_not_throttled() -> None:
    assert _copy_s(_limits("leader", 1, "0:2,1:1")) < 2
    assert _copy_s(_limits("follower", 2, "0:1,1:2")) < 2
