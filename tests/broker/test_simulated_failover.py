"""Failover: how soon a failed broker is replaced, and when its session must expire first."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from suwi.broker.in_process import stop_all
from suwi.client.connection import PeerConnection
from suwi.metadata.ledger import Elected
from suwi.model.ids import NO_NODE, NodeId
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import (
    SEEDS,
    controller,
    create,
    image,
    run,
    state,
    until,
)

SESSION_S = 30.0
SOON_S = 0.5


def run_with_long_sessions(
    scenario: Callable[[SimCluster], Awaitable[None]], seed: int = 1, **options: Any
) -> None:
    """Run with sessions so long that no test can wait for their end."""
    run(scenario, seed, session_timeout_s=SESSION_S, **options)


async def depose(cluster: SimCluster) -> None:
    active_controller = cluster.store.ledger.controller
    if active_controller is not None:
        await cluster.store.view().depose(active_controller.epoch)


def other_than(*numbers: int) -> int:
    return next(number for number in (1, 2, 3) if number not in numbers)


# -- fast failover -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_broker_is_replaced_before_its_session_ends(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        heir = other_than(victim)
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, heir]])
        await asyncio.sleep(1)
        cluster[victim].kill()
        await until(lambda: state(cluster, seen_by=heir).leader == heir, SOON_S)
        assert state(cluster, seen_by=heir).isr == (heir,)
        fenced = image(cluster, heir).registered_brokers[NodeId(victim)]
        assert fenced.fenced
        assert NodeId(victim) not in image(cluster, heir).unfenced_brokers

    run_with_long_sessions(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_controller_is_replaced_before_its_session_ends(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = controller(cluster)
        heir = other_than(victim)
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, heir]])
        await asyncio.sleep(1)
        cluster[victim].kill()
        await until(lambda: state(cluster, seen_by=heir).leader == heir, SOON_S)
        assert controller(cluster) not in (victim, NO_NODE)

    run_with_long_sessions(scenario, seed)


def is_connected(cluster: SimCluster, number: int, to: int) -> bool:
    broker = cluster[number].broker
    assert broker is not None
    return to in {node for node, _ in broker._suspected_brokers._connections.values()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("was_controller", [False, True])
def test_metadata_right_after_a_kill_returns_the_next_leader(
    seed: int, was_controller: bool
) -> None:
    """librdkafka requests metadata at once, and again only after a second: the first response must
    not have the failed leader."""

    async def scenario(cluster: SimCluster) -> None:
        victim = controller(cluster) if was_controller else other_than(controller(cluster))
        heir = other_than(victim)
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, heir]])
        # Only a broker to which there was a connection can be suspected.
        await until(lambda: is_connected(cluster, heir, victim))
        connection = await PeerConnection.open(f"b{heir}", PORT)
        try:
            cluster[victim].kill()
            await asyncio.sleep(0.001)  # the reset has not arrived yet
            asked = {
                "topics": [{"name": "orders"}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }
            answer = await connection.call(ApiKey.METADATA, 9, asked)
        finally:
            await connection.close()
        assert answer.topics[0].partitions[0].leader_id == heir
        # It stays in the broker list until its session ends: librdkafka drops too much state
        # together with a broker.
        assert victim in {broker.node_id for broker in answer.brokers}

    run_with_long_sessions(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_and_restarted_broker_serves_soon(seed: int) -> None:
    """It finds its own old registration with its own address."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1]])
        await asyncio.sleep(1)
        cluster[1].kill()
        await asyncio.sleep(1)
        await cluster[1].start()
        await until(lambda: state(cluster).leader == 1, SOON_S)
        assert NodeId(1) in image(cluster, 1).unfenced_brokers

    run_with_long_sessions(scenario, seed)


def test_the_only_in_sync_leader_stays_leader_until_its_session_ends() -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        witness = other_than(victim)
        async with cluster.client("test") as client:
            configs = {"unclean.leader.election.enable": "true"}
            await create(client, assignments=[[victim, witness]], configs=configs)
            await asyncio.sleep(1)
            cluster[witness].kill()
            await until(lambda: state(cluster, seen_by=victim).isr == (victim,))
            await cluster[witness].start()
        cluster[victim].kill()
        await until(lambda: NodeId(victim) not in image(cluster, witness).unfenced_brokers)
        waiting = state(cluster, seen_by=witness)
        if waiting.isr == (victim,):  # otherwise the other one was in sync again by then
            assert waiting.leader == victim
            await until(lambda: state(cluster, seen_by=witness).leader == witness)
            assert state(cluster, seen_by=witness).is_recovering

    run(scenario, 3, session_timeout_s=10.0, settings={"replica.lag.time.max.ms": "500"})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_broker_is_replaced_only_when_its_session_ends(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        heir = other_than(victim)
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, heir]])
        await asyncio.sleep(1)
        cluster[victim].freeze()
        await asyncio.sleep(SESSION_S - 5)
        assert state(cluster, seen_by=heir).leader == victim
        await until(lambda: state(cluster, seen_by=heir).leader == heir)
        cluster[victim].thaw()
        await until(lambda: set(state(cluster, seen_by=heir).isr) == {victim, heir})
        assert state(cluster, seen_by=heir).leader == heir

    run_with_long_sessions(scenario, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partitioned_broker_is_replaced_only_when_its_session_ends(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        rest = [number for number in (1, 2, 3) if number != victim]
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, rest[0]]])
        await asyncio.sleep(1)
        before = image(cluster, victim).registered_brokers
        network = cluster.simulation.network
        network.partition([f"b{victim}"], [f"b{number}" for number in rest])
        await asyncio.sleep(60)
        network.heal()
        assert {n: b.fenced for n, b in image(cluster, victim).registered_brokers.items()} == {
            1: False,
            2: False,
            3: False,
        }
        assert image(cluster, victim).registered_brokers == before

    run_with_long_sessions(scenario, seed)


def test_a_broken_connection_alone_does_not_depose_the_controller() -> None:
    async def scenario(cluster: SimCluster) -> None:
        before = cluster.store.ledger.controller
        await asyncio.sleep(1)
        for _ in range(10):
            cluster.simulation.network.reset(f"b{controller(cluster)}")
            await asyncio.sleep(0.2)
        assert cluster.store.ledger.controller == before
        assert len(image(cluster, 1).unfenced_brokers) == 3

    run_with_long_sessions(scenario)


def test_a_fenced_broker_that_responds_is_unfenced_although_its_connection_never_broke() -> None:
    """It stayed fenced for ever: a controller whose write of the fence timed out, and was applied
    later, had asked it before that."""

    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        async with cluster.client("test") as client:
            await create(client, assignments=[[victim, other_than(victim)]])
        await asyncio.sleep(1)
        active = cluster[controller(cluster)].broker
        assert active is not None
        registered = image(cluster, victim).registered_brokers[NodeId(victim)]
        await active.controller_election.active.partitions.fence(NodeId(victim), registered.epoch)
        await until(
            lambda: image(cluster, victim).unfenced_brokers.get(NodeId(victim)) == registered
        )
        await until(lambda: len(state(cluster, seen_by=victim).isr) == 2)

    run_with_long_sessions(scenario)


def test_a_fenced_broker_that_becomes_controller_unfences_itself() -> None:
    """No other broker unfences it: the controller monitors only the others."""

    async def scenario(cluster: SimCluster) -> None:
        victim = other_than(controller(cluster))
        active = cluster[controller(cluster)].broker
        assert active is not None
        registered = image(cluster, victim).registered_brokers[NodeId(victim)]
        network = cluster.simulation.network
        network.partition([f"b{victim}"], [f"b{n}" for n in (1, 2, 3) if n != victim])
        await active.controller_election.active.partitions.fence(NodeId(victim), registered.epoch)
        while controller(cluster) != victim:
            await depose(cluster)
            await asyncio.sleep(0.1)
        network.heal()
        await until(
            lambda: image(cluster, victim).unfenced_brokers.get(NodeId(victim)) == registered
        )

    run_with_long_sessions(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_that_refuse_each_other_depose_no_controller_twice(seed: int) -> None:
    """A firewall separates one broker from the two others; either side can elect a controller."""

    async def scenario(cluster: SimCluster) -> None:
        for _ in range(20):  # Until every broker has monitored every other.
            await depose(cluster)
            await asyncio.sleep(1)
        elections: list[bool] = []
        cluster.store.observers.append(
            lambda _, events: elections.extend(isinstance(event, Elected) for event in events)
        )
        network = cluster.simulation.network
        for other in ("b2", "b3"):
            network.refuse("b1", other)
            network.refuse(other, "b1")
        await asyncio.sleep(20)
        assert sum(elections) <= 6
        network.heal()
        await until(lambda: len(image(cluster, 1).unfenced_brokers) == 3)

    run_with_long_sessions(scenario, seed)


# -- controlled shutdown -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_controller", [False, True])
def test_controlled_shutdown_elects_other_leaders_first(seed: int, is_controller: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        leaver = active if is_controller else other_than(active)
        heir = other_than(leaver)
        async with cluster.client("test") as client:
            await create(client, assignments=[[leaver, heir]])
        await asyncio.sleep(1)
        assert await cluster[leaver].stop()
        # In one change, while the broker was still running.
        (handed_over,) = [
            change
            for change in cluster.store.ledger.history
            if b'"fenced":true' in (change.values.get(f"live/{leaver}") or b"")
        ]
        assert "partitions/orders/0" in handed_over.values
        await until(lambda: NodeId(leaver) not in image(cluster, heir).registered_brokers)
        left = state(cluster, seen_by=heir)
        assert (left.leader, left.leader_epoch, left.isr) == (heir, 1, (heir,))

    run_with_long_sessions(scenario, seed)


def test_a_leader_without_other_in_sync_replicas_can_stop() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[3]])
        await asyncio.sleep(1)
        assert await cluster[3].stop()
        await until(lambda: state(cluster).leader == NO_NODE)
        await cluster[3].start()
        await until(lambda: state(cluster).leader == 3)

    run_with_long_sessions(scenario)


@pytest.mark.parametrize("is_shutting_down", [False, True])
def test_a_fenced_broker_that_becomes_the_controller_serves_again_unless_it_stops(
    is_shutting_down: bool,
) -> None:
    """One that stops would elect itself again, for all that it had just given up."""

    async def scenario(cluster: SimCluster) -> None:
        first = controller(cluster)
        heir = other_than(first)
        own = image(cluster, first).registered_brokers[NodeId(heir)]
        active, stopping = cluster[first].broker, cluster[heir].broker
        assert active is not None
        assert stopping is not None
        stopping.controller_election.is_shutting_down = is_shutting_down
        await cluster[other_than(first, heir)].stop()
        await active.controller_election.active.partitions.fence(NodeId(heir), own.epoch)
        await active.controller_election.stop()
        await until(lambda: stopping.controller_election.is_active_controller)
        await asyncio.sleep(1)
        is_fenced = NodeId(heir) not in image(cluster, heir).unfenced_brokers
        assert is_fenced is is_shutting_down

    run_with_long_sessions(scenario)


def test_brokers_that_stop_together_ask_for_no_elections_and_return_with_their_leaders() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        await asyncio.sleep(1)
        changes = len(cluster.store.ledger.history)
        brokers = [cluster[number].broker for number in (1, 2, 3)]
        assert await stop_all([broker for broker in brokers if broker is not None])
        written = [set(each.values) for each in list(cluster.store.ledger.history)[changes:]]
        assert not [keys for keys in written if any(key.startswith("partitions/") for key in keys)]
        for number in (1, 2, 3):
            cluster[number].kill()
        await asyncio.gather(*(cluster[number].start() for number in (1, 2, 3)))
        for index in range(3):
            await until(lambda index=index: state(cluster, index).leader == index + 1)  # type: ignore[misc]
            assert sorted(state(cluster, index).isr) == [1, 2, 3]

    # The one that registers first leads all partitions until the others are looked for.
    run_with_long_sessions(scenario, settings={"leader.imbalance.check.interval.seconds": "5"})
