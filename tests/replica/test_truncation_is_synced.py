"""A power loss cannot restore records that a follower has truncated and replaced."""

import asyncio

from suwi.client.connection import PeerConnection
from suwi.sim.simulation import Simulation
from tests.broker.simulated import produce
from tests.replica.replicated import begin


def test_a_follower_syncs_a_truncation_before_its_next_fetch() -> None:
    """Found by the simulation (seed 150022): the old records were on the disk, the truncation and
    the new ones were not; after the power loss the old ones were back, below the high watermark."""
    simulation = Simulation(11)

    async def scenario() -> None:
        cluster, client = await begin(simulation, session_timeout_s=2.0)
        assert (await produce(client, "orders", [b"a"])).error_code == 0
        # b1 has no followers any more: what it appends is on its disk only.
        for other in ("b2", "b3"):
            simulation.network.cut("b1", other)
            simulation.network.cut(other, "b1")
        await produce(client, "orders", [b"old"], acks=1)
        assert cluster[1].broker is not None
        old = cluster[1].broker.replicas.replica_of("orders", 0)
        assert await old.syncer.sync_once(old.log)
        cluster[1].kill()
        await asyncio.sleep(5)
        for other in ("b2", "b3"):
            simulation.network.heal("b1", other)
            simulation.network.heal(other, "b1")
        leader = await PeerConnection.open("b2", 9092)
        for _ in range(100):
            if (await produce(leader, "orders", [b"new"])).error_code == 0:
                break
            await asyncio.sleep(0.1)
        await cluster[1].start()
        for _ in range(100):
            partition = cluster[1].broker.replicas.replica_of("orders", 0)
            if partition.is_open and partition.log_as_it_is.epochs.latest > 0:
                break
            await asyncio.sleep(0.1)
        log = partition.log_as_it_is
        assert log.epochs.latest > 0, "it has fetched from the new leader"
        assert log.durability.truncation_is_safe

    simulation.run(scenario())
