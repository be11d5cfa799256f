"""The metadata store is silent: what goes on, and what stops (hazard Z6); fencing (hazard Z18)."""

import asyncio

import pytest

from suwi.metadata.ledger import Elected, Registered
from suwi.model.errors import NotController
from suwi.model.ids import NodeId
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import (
    SEEDS,
    controller,
    create,
    image,
    run,
    state,
    until,
)

SESSION_S = 6.0


def is_active(cluster: SimCluster, number: int) -> bool:
    broker = cluster[number].broker
    assert broker is not None
    return broker.controller_election.is_active_controller


def active_brokers(cluster: SimCluster) -> list[int]:
    return [number for number in (1, 2, 3) if is_active(cluster, number)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_controller_that_the_store_does_not_answer_is_controller_no_more(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        old = controller(cluster)
        await until(lambda: active_brokers(cluster) == [old])
        cluster[old].cut_store()
        await asyncio.sleep(SESSION_S - 1)
        assert is_active(cluster, old)
        await asyncio.sleep(1)
        assert not is_active(cluster, old)
        broker = cluster[old].broker
        assert broker is not None
        with pytest.raises(NotController):
            _ = broker.controller_election.active.topics
        await until(lambda: len(active_brokers(cluster)) == 1)

    run(scenario, seed, session_timeout_s=SESSION_S)


@pytest.mark.parametrize("seed", SEEDS)
def test_while_the_store_is_away_partitions_go_on_and_afterwards_nothing_is_bumped(
    seed: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            await create(client, assignments=[[1, 2, 3]])
            await until(lambda: len(state(cluster, seen_by=1).isr) == 3)
            before = image(cluster, 1)
            events: list[object] = []
            cluster.store.observers.append(lambda _, committed: events.extend(committed))
            cluster.begin_store_outage()
            await asyncio.sleep(10 * SESSION_S)
            assert active_brokers(cluster) == []
            broker = cluster[1].broker
            assert broker is not None
            assert [each.is_leader for each in broker.replicas] == [True]
            cluster.end_store_outage()
            await until(lambda: len(active_brokers(cluster)) == 1)
        assert not [each for each in events if isinstance(each, Elected | Registered)]
        assert image(cluster, 1).registered_brokers == before.registered_brokers
        assert image(cluster, 1).topics == before.topics

    run(scenario, seed, session_timeout_s=SESSION_S)


def test_a_fenced_broker_that_answers_again_stays_without_leadership_for_ten_seconds() -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        victim = next(number for number in (1, 2, 3) if number != active)
        await asyncio.sleep(2)
        network = cluster.simulation.network
        fenced: list[bool] = []
        for _ in range(16):  # A firewall that refuses every other half second.
            network.refuse(f"b{active}", f"b{victim}")
            network.reset(f"b{victim}")
            await asyncio.sleep(0.25)
            network.heal()
            await asyncio.sleep(0.25)
            fenced.append(NodeId(victim) not in image(cluster, active).unfenced_brokers)
        assert fenced.index(True) < 2
        assert all(fenced[2:])
        await until(lambda: NodeId(victim) in image(cluster, active).unfenced_brokers, 10)

    run(scenario, 1, session_timeout_s=30.0)
