"""The status of a cluster as its brokers report it, in simulation."""

import asyncio

import pytest

from suwi.admin.missing_members import missing_members
from suwi.client.addresses import Address
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import ClusterStatus, describe_events, read_status
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.client.own_apis import AuditLines, newest_audit_lines, why_silent
from suwi.client.partition_history import partition_histories
from suwi.client.versioned_connection import connect_plain
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.sim.clock import ManualClock
from suwi.sim.cluster import SimCluster
from tests.broker.simulated import produce
from tests.broker.test_simulated_cluster import create, state, until
from tests.client.fakes import PORT, FakeCluster, on_fake_cluster

ORDERS = TopicPartition("orders", PartitionIndex(0))


def test_a_replica_that_a_reassignment_adds_is_not_missing_yet() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        cluster = SimCluster(simulation, settings={"replica.fetch.max.bytes": "2000"})
        await cluster.start()
        client = cluster.client("admin")
        admin = Admin(client)

        async def status() -> ClusterStatus:
            return await read_status(client, ManualClock(0), lag_min=None, timeout_s=5)

        await create(client, assignments=[[1, 2]])
        connection = await PeerConnection.open("b1", 9092)
        for _ in range(20):
            assert (await produce(connection, "orders", [bytes(1_000)])).error_code == 0
        slow = {"follower.replication.throttled.rate": "1"}
        await admin.alter_configs(Resource(ResourceType.BROKER, "3"), slow)
        listed = {"follower.replication.throttled.replicas": "0:3"}
        await admin.alter_configs(Resource(ResourceType.TOPIC, "orders"), listed)
        await asyncio.sleep(1)
        await admin.reassign({ORDERS: [1, 2, 3]})

        told = await status()
        assert list(await admin.reassignments()) == [ORDERS]
        assert told.under_replicated == ()
        assert [broker.out_of_sync for broker in told.brokers] == [0, 0, 0]
        assert await missing_members(client, await client.topic("orders", fresh=True)) == []

        cluster[2].kill()
        await until(lambda: state(cluster).isr == (1,))
        told = await status()
        assert [str(partition) for partition in told.under_replicated] == ["orders-0"]
        (member,) = await missing_members(client, await client.topic("orders", fresh=True))
        assert (member.node, member.is_exact) == (2, True)
        connection.abort()
        await client.close()

    simulation.run(main())


def test_a_broker_that_does_not_know_of_events_closes_only_the_connection_for_them() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as client:
            shared = await client.any_link()
            with pytest.raises(ConnectionLost):
                await describe_events(client)
            assert await partition_histories(client) == {}
            assert shared.is_open

    on_fake_cluster(scenario, brokers=1)


def test_a_broker_that_stops_to_answer_is_not_taken_for_one_of_another_kind() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        cluster = SimCluster(simulation)
        await cluster.start()
        async with cluster.client("admin") as client:
            told = await newest_audit_lines(client)
            assert [type(each) for each in told.values()] == [AuditLines] * 3
            cluster[2].freeze()
            both = await asyncio.gather(newest_audit_lines(client), newest_audit_lines(client))
            for told in both:
                silent = told[NodeId(2)]
                assert isinstance(silent, OSError)
                assert "it is not Suwi's" not in why_silent(silent)
            cluster[2].thaw()
            told = await newest_audit_lines(client)
            assert [type(each) for each in told.values()] == [AuditLines] * 3

    simulation.run(main())


def test_a_connection_that_was_made_while_its_cluster_was_closed_is_closed_with_it_again() -> None:
    async def scenario(fake: FakeCluster) -> None:
        connect, may_connect = connect_plain("test"), asyncio.Event()

        async def connect_late(address: Address) -> PeerConnection:
            await may_connect.wait()
            return await connect(address)

        random = fake.simulation.random.stream("client")
        cluster = Cluster([Address("b0", PORT)], random=random, connect=connect_late)
        may_connect.set()
        await cluster.refresh([])
        may_connect.clear()
        connecting = asyncio.create_task(cluster.own_link(*cluster.brokers))
        await asyncio.sleep(1)
        await cluster.close()
        may_connect.set()
        link = await connecting
        assert link.is_open
        await cluster.close()
        assert not link.is_open

    on_fake_cluster(scenario, brokers=1)
