"""Only the current leader may report an offset as out of range: consumers reset because of it."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.sim.simulation import Simulation
from tests.broker.simulated import produce
from tests.replica.replicated import begin
from tests.replica.test_replica_selector import fetch


async def error_of_fetch(client: PeerConnection, offset: int, epoch: int = -1) -> int:
    (read,) = (await fetch(client, offset, epoch=epoch)).topics[0].partitions
    return read.error_code


def test_a_stale_leader_does_not_report_an_offset_of_its_successor_as_out_of_range() -> None:
    """Found by the simulation (seed 26735): the consumer would have reset to the beginning, or
    skipped records."""
    simulation = Simulation(9)

    async def scenario() -> None:
        cluster, client = await begin(simulation, session_timeout_s=2.0)
        assert (await produce(client, "orders", [b"a"])).error_code == 0
        cluster[1].freeze()
        asked = [
            asyncio.create_task(error_of_fetch(client, offset=3, epoch=epoch)) for epoch in (0, -1)
        ]
        await asyncio.sleep(5)
        other = await PeerConnection.open("b2", 9092)
        for value in (b"b", b"c"):
            assert (await produce(other, "orders", [value])).error_code == 0
        cluster[1].thaw()
        assert await asked[0] in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.fenced_leader_epoch,
        )
        assert await asked[1] == ErrorCode.not_leader_or_follower

    simulation.run(scenario())


def test_a_leader_reports_an_offset_beyond_the_end_and_a_follower_redirects_to_the_leader() -> None:
    simulation = Simulation(10)

    async def scenario() -> None:
        _, leader = await begin(simulation)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        assert await error_of_fetch(leader, 2) == ErrorCode.offset_out_of_range
        assert await error_of_fetch(leader, 1) == 0
        follower = await PeerConnection.open("b2", 9092)
        assert await error_of_fetch(follower, 2) == ErrorCode.not_leader_or_follower
        # A consumer that reads from a follower (KIP-392) goes back to the leader.
        assert await error_of_fetch(follower, 2, epoch=0) == ErrorCode.offset_out_of_range

    simulation.run(scenario())


def test_without_the_metadata_store_a_leader_reports_no_offset_as_out_of_range() -> None:
    simulation = Simulation(11)

    async def scenario() -> None:
        cluster, leader = await begin(simulation, session_timeout_s=60.0)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        cluster[1].cut_store()
        assert await error_of_fetch(leader, 2) == ErrorCode.not_leader_or_follower

    simulation.run(scenario())
