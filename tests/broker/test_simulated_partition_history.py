"""Who left the in-sync sets and who led, as clients are told by the brokers that are left."""

import asyncio

import pytest

from suwi.admin.missing_members import missing_members
from suwi.client.connection import ConnectionLost
from suwi.client.partition_history import describe_partition_history, partition_histories
from suwi.metadata.partition_history import AWAY, FELL_BEHIND, LEADER_AWAY, NO_LEADER
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_clients_posing_as_brokers import call_json, unauthenticated
from tests.broker.test_simulated_cluster import SEEDS, controller, create, image, run, state, until


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_fails_is_missing_since_then_also_after_the_controller_failed(
    seed: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3]])
            await until(lambda: all(len(state(cluster, seen_by=n).isr) == 3 for n in (1, 2, 3)))
            victim = controller(cluster)
            left = [number for number in (1, 2, 3) if number != victim]
            cluster[victim].kill()
            await until(lambda: all(len(state(cluster, seen_by=n).isr) == 2 for n in left))
            await client.refresh(["orders"])
            (member,) = await missing_members(client, await client.topic("orders"))
            assert (member.partition, member.node, member.is_exact) == (0, victim, True)
            assert member.reason == AWAY
            assert member.since_ms is not None
            await asyncio.sleep(10)
            (later,) = await missing_members(client, await client.topic("orders"))
            assert later == member
            histories = await partition_histories(client, "orders", events_max=10)
            assert set(histories) == set(left)
            for history in histories.values():
                events = [e for e in history.events if victim in e.left]
                assert [event.left[NodeId(victim)] for event in events] == [AWAY]
                assert events[0].election == (LEADER_AWAY if victim == 1 else "")
                assert events[0].at_ms - history.complete_from_ms >= 0
            await cluster[victim].start()
            await until(lambda: len(state(cluster, seen_by=left[0]).isr) == 3)
            await client.refresh(["orders"])
            assert await missing_members(client, await client.topic("orders")) == []

    run(scenario, seed)


def test_a_broker_that_restarts_knows_only_that_a_replica_was_missing_before() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3]])
            cluster[3].kill()
            await until(lambda: set(state(cluster, seen_by=1).isr) == {1, 2})
            cluster[2].kill()
            await until(lambda: set(state(cluster, seen_by=1).isr) == {1})
            await cluster[2].start()
            await until(lambda: set(state(cluster, seen_by=2).isr) == {1, 2})
            await client.refresh(["orders"])
            restarted = await describe_partition_history(client, NodeId(2), "orders")
            assert [(m.node, m.is_exact, m.reason) for m in restarted.missing] == [(3, False, AWAY)]
            (member,) = await missing_members(client, await client.topic("orders"))
            assert (member.node, member.is_exact) == (3, True)
            assert member.since_ms is not None
            assert member.since_ms < restarted.missing[0].since_ms

    run(scenario)


def test_a_follower_that_cannot_fetch_has_fallen_behind() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3]])
            await until(lambda: len(state(cluster).isr) == 3)
            cluster.simulation.network.partition(["b3"], ["b1"])
            await until(lambda: set(state(cluster).isr) == {1, 2})
            cluster.simulation.network.heal()
            await client.refresh(["orders"])
            history = await describe_partition_history(client, NodeId(1), "orders", events_max=1)
            assert history.events[0].left == {3: FELL_BEHIND}
            assert history.events[0].election == ""

    run(scenario, settings={"replica.lag.time.max.ms": "1000"})


def test_a_partition_that_nobody_can_lead_says_so() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1]])
            await until(lambda: "orders" in image(cluster, 2).topics)
            cluster[1].kill()
            await until(lambda: state(cluster, seen_by=2).leader != 1)
            await client.refresh(["orders"])
            history = await describe_partition_history(client, NodeId(2), "orders", events_max=5)
            assert [event.election for event in history.events] == [NO_LEADER]
            assert (history.events[0].leader, history.events[0].isr) == (NO_NODE, (1,))

    run(scenario)


def test_clients_may_ask_and_bad_questions_close_their_connection() -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await unauthenticated(cluster, to=1)
        for asked in ({}, {"topic": "none"}, {"events_max": 1 << 40}, {"events_max": -1}):
            told = await call_json(client, ApiKey.DESCRIBE_PARTITION_HISTORY, asked)
            assert told.pop("complete_from_ms") > 0
            assert told == {"missing": [], "missing_left_off": 0, "events": []}
        for bad in ({"topic": 7}, {"events_max": "x"}, {"events_max": True}):
            client = await unauthenticated(cluster, to=1)
            with pytest.raises(ConnectionLost):
                await call_json(client, ApiKey.DESCRIBE_PARTITION_HISTORY, bad)

    run(scenario)


def test_an_answer_is_bounded_and_says_how_many_more_are_missing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3]] * 300)
            await until(lambda: "orders" in image(cluster, 1).topics)
            for victim in (2, 3):
                cluster[victim].kill()
            await until(lambda: all(s.isr == (1,) for s in image(cluster, 1).topics["orders"][3]))
            await client.refresh(["orders"])
            told = await describe_partition_history(client, NodeId(1), events_max=10_000)
            assert (len(told.missing), told.missing_left_off) == (500, 100)
            assert len(told.events) == 200
            members = await missing_members(client, await client.topic("orders"))
            assert len(members) == 600
            assert [m.since_ms is None for m in members] == [False] * 500 + [True] * 100

    run(scenario)
