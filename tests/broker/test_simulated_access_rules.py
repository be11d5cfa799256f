"""A broker that is cut off from the store has the access rules that it had."""

from collections.abc import Iterable

import pytest

from suwi.client.acls import Acls
from suwi.model.ids import NO_NODE
from suwi.security.acls import Operation, ResourceType
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import SEEDS, controller, image, run, until
from tests.security.access import AUTHORIZER, topic

ALICE, ELSEWHERE = "User:alice", "10.0.0.7"
SETTINGS = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
READ = topic(Operation.READ, "orders")
PROPAGATION_S = 1.0


def may_read(cluster: SimCluster, number: int) -> bool:
    rules = image(cluster, number).acls
    decision = rules.decide(ALICE, ELSEWHERE, Operation.READ, ResourceType.TOPIC, "orders")
    return decision is not None and decision.is_allowed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_is_cut_off_keeps_its_rules_until_it_is_back(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def all_say(brokers: Iterable[int], expected: bool) -> None:
            await until(
                lambda: all(may_read(cluster, n) is expected for n in brokers), PROPAGATION_S
            )

        await until(lambda: controller(cluster) != NO_NODE)
        away, *others = [n for n in (1, 2, 3) if n != controller(cluster)] + [controller(cluster)]
        async with cluster.client("administrator") as client:
            rules = Acls(client)
            await rules.create([READ.rule(ALICE)])
            await all_say((1, 2, 3), True)
            cluster[away].cut_store()
            await rules.create([READ.rule(ALICE, deny=True)])
            await all_say(others, False)
            assert may_read(cluster, away)
            cluster[away].heal_store()
            await until(lambda: not may_read(cluster, away))

    run(scenario, seed, SETTINGS)
