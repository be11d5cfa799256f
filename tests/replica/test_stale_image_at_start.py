"""A broker that starts with a stale metadata image does not truncate its log because of it."""

import asyncio

from suwi.client.connection import PeerConnection
from suwi.sim.simulation import Simulation
from tests.broker.simulated import produce
from tests.replica.replicated import begin


class _AlwaysMaximal:
    """Reads are as stale as allowed."""

    def below(self, limit: int) -> int:
        return limit - 1

    def uniform(self, least: float, most: float) -> float:
        return most


def test_records_of_an_epoch_that_the_first_read_does_not_show_are_kept() -> None:
    """Found by the simulation (seed 250063): a new session may read older state than the previous
    one. Recovery considered the newest records, which were committed, impossible and truncated
    them."""
    simulation = Simulation(2)

    async def scenario() -> None:
        cluster, _ = await begin(simulation, session_timeout_s=2.0)
        created = cluster.store.ledger.transaction
        cluster[1].kill()
        leader = await PeerConnection.open("b2", 9092)
        for _ in range(100):
            if (await produce(leader, "orders", [b"a"])).error_code == 0:
                break
            await asyncio.sleep(0.1)
        assert cluster[2].broker is not None
        assert cluster[2].broker.replicas.replica_of("orders", 0).leader_epoch > 0
        cluster[2].kill()
        cluster.store_faults.read_lag_max = cluster.store.ledger.transaction - created
        cluster.store.random = _AlwaysMaximal()  # type: ignore[assignment]
        await cluster[2].start()
        assert cluster[2].broker.replicas.replica_of("orders", 0).log.end_offset == 1

    simulation.run(scenario())
