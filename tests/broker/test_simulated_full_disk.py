"""A disk that is full when its broker is asked to lead."""

from suwi.sim.cluster import SimCluster, SimNode
from tests.broker.test_simulated_cluster import image, run, state, until
from tests.broker.test_simulated_losses import create_orders, make_controller, read, write


def fill(node: SimNode) -> None:
    disk = node.machine.disk
    disk.capacity_bytes = disk.drive.volume.used_bytes


def test_a_broker_that_could_not_take_office_stops_all_the_same() -> None:
    """Found by the simulation."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await create_orders(cluster, [1, 2])
        assert await write(cluster, 1, [b"a"]) == 0
        fill(cluster[2])
        cluster[1].kill()
        await until(lambda: state(cluster, seen_by=3).leader == 2)
        assert await write(cluster, 2, [b"b"]) != 0
        await cluster[2].stop()
        await until(lambda: 2 not in image(cluster, 3).registered)
        cluster[2].machine.disk.capacity_bytes = None
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader == 2)
        assert await read(cluster, 2) == [b"a"]

    run(scenario)
