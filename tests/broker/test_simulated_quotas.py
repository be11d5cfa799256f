"""Client quotas are changed while the controller changes."""

import asyncio

import pytest

from suwi.client.quotas import ClientQuotas
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE
from suwi.security.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, Entity
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import SEEDS, controller, image, run, until

ALICE: Entity = (("user", "alice"),)
KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_quota_that_was_answered_is_lost_when_controllers_fail(seed: int) -> None:
    """Each client raises one key of the same entity, which is stored as a whole."""

    async def scenario(cluster: SimCluster) -> None:
        answered = dict.fromkeys(KEYS, 0.0)
        over = asyncio.Event()

        async def raise_again_and_again(key: str) -> None:
            async with cluster.client(key) as client:
                value = 0.0
                while not over.is_set():
                    value += 1
                    try:
                        await ClientQuotas(client).alter(ALICE, {key: value})
                        answered[key] = value
                    except (BrokerError, OSError):
                        await asyncio.sleep(0.1)  # it may be done or not

        async with asyncio.TaskGroup() as clients:
            for key in KEYS:
                clients.create_task(raise_again_and_again(key))
            for _ in range(3):
                before = dict(answered)
                await until(lambda before=before: all(answered[k] > before[k] for k in KEYS))
                victim = controller(cluster)
                cluster[victim].kill()
                await until(lambda victim=victim: controller(cluster) not in (victim, NO_NODE))
                await cluster[victim].start()
            over.set()

        def seen_by(number: int) -> list[float]:
            stored = image(cluster, number).client_quotas.of(ALICE)
            return [stored.get(key, 0.0) for key in KEYS]

        for number in (1, 2, 3):
            await until(
                lambda number=number: all(
                    value >= answered[key] for key, value in zip(KEYS, seen_by(number), strict=True)
                )
            )
        await until(lambda: seen_by(1) == seen_by(2) == seen_by(3))

    run(scenario, seed)
