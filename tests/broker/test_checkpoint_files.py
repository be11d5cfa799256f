"""The checkpoint files of a broker are there from the start, as Apache Kafka writes them."""

import asyncio

import pytest

from suwi.log import names
from suwi.sim import Simulation
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import image, until
from tests.replica.replicated import begin

DATA = "/data"
OFFSETS = (
    names.HIGH_WATERMARKS,
    names.RECOVERY_POINTS,
    names.LOG_START_OFFSETS,
    names.CLEANER_OFFSETS,
)
EMPTY = b"0\n0\n"


def read(cluster: SimCluster, number: int, name: str) -> bytes:
    return cluster[number].machine.disk.read_bytes(f"{DATA}/{name}")


def test_a_new_broker_has_all_offset_checkpoints_before_it_has_a_topic() -> None:
    simulation = Simulation(0)

    async def scenario() -> None:
        cluster = SimCluster(simulation, brokers=1)
        await cluster.start()
        assert [read(cluster, 1, name) for name in OFFSETS] == [EMPTY] * 4

    simulation.run(scenario())


def test_a_partition_without_records_is_in_the_checkpoints_of_all_its_replicas() -> None:
    simulation = Simulation(0)

    async def scenario() -> None:
        cluster, _ = await begin(simulation)
        await asyncio.sleep(30)
        for number in (1, 2, 3):
            assert read(cluster, number, names.HIGH_WATERMARKS) == b"0\n1\norders 0 0\n"
        epochs = [read(cluster, n, f"orders-0/{names.LEADER_EPOCHS}") for n in (1, 2, 3)]
        assert epochs == [b"0\n1\n0 0\n", EMPTY, EMPTY]

    simulation.run(scenario())


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restarted_broker_does_not_write_what_its_checkpoints_have(is_clean: bool) -> None:
    simulation = Simulation(0)

    async def scenario() -> None:
        cluster, _ = await begin(simulation)
        await asyncio.sleep(30)
        await cluster[3].stop() if is_clean else cluster[3].kill()
        disk = cluster[3].machine.disk
        paths = [f"{DATA}/{name}" for name in (*OFFSETS, f"orders-0/{names.LEADER_EPOCHS}")]
        before = [disk.modified_ms(path) for path in paths]
        await asyncio.sleep(10)
        await cluster[3].start()
        await until(lambda: len(image(cluster, 1).topics["orders"].partitions[0].isr) == 3)
        await asyncio.sleep(30)
        assert [disk.modified_ms(path) for path in paths] == before

    simulation.run(scenario())
