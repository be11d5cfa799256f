"""Partitions without a leader: what an administrator does about it, and what nobody may forget."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.controller import replica_state_query
from suwi.controller.replication_control import ReplicationControl
from suwi.metadata.cluster_events import UNCLEAN_ELECTION
from suwi.metadata.image import BrokerInfo
from suwi.model.errors import RequestTimedOut
from suwi.model.ids import NO_NODE, NodeId
from suwi.replica.peers import Peers
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import run, state, until
from tests.broker.test_simulated_losses import (
    ONE_BY_ONE,
    create_orders,
    events_of_kind,
    lead,
    lose_all,
    make_controller,
)

UNCLEAN = "unclean.leader.election.enable"
TOPIC, BROKER = 2, 4


async def allow_unclean(cluster: SimCluster, resource: int, name: str) -> None:
    config = {"name": UNCLEAN, "config_operation": 0, "value": "true"}
    changed = {"resource_type": resource, "resource_name": name, "configs": [config]}
    async with cluster.client("admin") as client:
        fields = {"resources": [changed], "validate_only": False}
        answer = await client.call_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
        assert answer.responses[0].error_code == 0


async def elect(cluster: SimCluster) -> ErrorCode:
    async with cluster.client("admin") as client:
        partitions = [{"topic": "orders", "partitions": [0]}]
        fields = {"election_type": 1, "topic_partitions": partitions, "timeout": 30_000}
        answer = await client.call_controller(ApiKey.ELECT_LEADERS, fields)
        (topic,) = answer.replica_election_results
        return ErrorCode(topic.partition_result[0].error_code)


@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "orders"), (BROKER, "")])
def test_a_partition_without_a_leader_gets_one_as_soon_as_unclean_elections_are_allowed(
    resource: int, name: str
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await create_orders(cluster, [1, 2])
        cluster[2].kill()
        await until(lambda: state(cluster, seen_by=3).isr == (1,))
        cluster[1].kill()
        await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
        await cluster[2].start()
        await asyncio.sleep(5)
        assert state(cluster, seen_by=3).leader == NO_NODE
        await allow_unclean(cluster, resource, name)
        await lead(cluster, 2)
        assert len(events_of_kind(cluster, 3, UNCLEAN_ELECTION)) == 1

    run(scenario, 1, ONE_BY_ONE)


def test_after_a_power_loss_of_all_a_lost_reply_to_the_registration_delays_no_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await lose_all(cluster)
        await asyncio.sleep(5)
        apply = ReplicationControl.apply_registrations

        async def apply_without_reply(self: ReplicationControl, registered: Any) -> None:
            await apply(self, registered)
            raise RequestTimedOut("the reply was lost")

        monkeypatch.setattr(ReplicationControl, "apply_registrations", apply_without_reply)
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader != NO_NODE)

    run(scenario, 1)


@pytest.fixture
def silent_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 2 does not tell what is in its logs."""
    query = replica_state_query._query

    async def query_others(
        peers: Peers, broker: BrokerInfo, topics: list[str], timeout_s: float
    ) -> Any:
        return {} if broker.id == NodeId(2) else await query(peers, broker, topics, timeout_s)

    monkeypatch.setattr(replica_state_query, "_query", query_others)


@pytest.mark.usefixtures("silent_replica")
def test_an_unclean_election_on_demand_does_not_wait_for_a_replica_that_cannot_be_read() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await lose_all(cluster)
        await cluster[2].start()
        await asyncio.sleep(30)
        assert state(cluster, seen_by=3).leader == NO_NODE
        assert await elect(cluster) is ErrorCode.none
        await lead(cluster, 1)
        assert len(events_of_kind(cluster, 3, UNCLEAN_ELECTION)) == 1

    run(scenario, 1)


@pytest.mark.usefixtures("silent_replica")
def test_where_unclean_elections_are_allowed_such_a_replica_is_not_awaited_for_long() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await lose_all(cluster)
        await cluster[2].start()
        await allow_unclean(cluster, TOPIC, "orders")
        await lead(cluster, 1)

    run(scenario, 1)
