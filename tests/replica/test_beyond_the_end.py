"""Only a leader that is one says of an offset that it does not exist: consumers reset by it."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.sim.simulation import Simulation
from tests.broker.simulated import produce
from tests.replica.replicated import begin
from tests.replica.test_reading_elsewhere import fetch


async def error_of_fetch(client: PeerConnection, offset: int, epoch: int = -1) -> int:
    (read,) = (await fetch(client, offset, epoch=epoch)).topics[0].partitions
    return read.error_code


def test_a_leader_that_slept_does_not_call_an_offset_of_its_successor_unknown() -> None:
    """Found by the simulation (seed 26735): the consumer would have gone back to the beginning, or
    skipped what came since."""
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


def test_a_leader_calls_an_offset_unknown_that_is_and_a_follower_sends_to_the_leader() -> None:
    simulation = Simulation(10)

    async def scenario() -> None:
        _, leader = await begin(simulation)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        assert await error_of_fetch(leader, 2) == ErrorCode.offset_out_of_range
        assert await error_of_fetch(leader, 1) == 0
        follower = await PeerConnection.open("b2", 9092)
        assert await error_of_fetch(follower, 2) == ErrorCode.not_leader_or_follower
        # Who reads from a follower by choice (KIP-392) goes back to the leader.
        assert await error_of_fetch(follower, 2, epoch=0) == ErrorCode.offset_out_of_range

    simulation.run(scenario())


def test_without_the_metadata_store_nothing_is_sure() -> None:
    simulation = Simulation(11)

    async def scenario() -> None:
        cluster, leader = await begin(simulation, session_timeout_s=60.0)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        cluster[1].cut_store()
        assert await error_of_fetch(leader, 2) == ErrorCode.not_leader_or_follower

    simulation.run(scenario())
