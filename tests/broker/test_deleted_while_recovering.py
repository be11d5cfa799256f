"""A topic that is deleted while a broker recovers its logs after an unclean shutdown."""

import pytest

from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim.cluster import SimCluster
from tests.broker.test_simulated_cluster import image, run, state, until
from tests.broker.test_simulated_losses import create_orders, make_controller, write


@pytest.mark.parametrize("seed", range(4))
def test_a_recreated_topic_does_not_open_the_log_of_the_deleted_one(seed: int) -> None:
    """Found by the simulation (seed 101145): the log was opened after its deletion, the new topic
    wrote to it, and the next start set the data aside as that of the deleted topic."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await create_orders(cluster, [1, 2])
        assert await write(cluster, 1, [b"old"]) == 0
        await until(lambda: len(state(cluster, seen_by=3).isr) == 2)
        cluster[2].kill()
        # Jobs are delayed: the log is opened when the topic is already deleted.
        cluster.simulation.loop.job_delay_s_max = 5.0
        starting = cluster[2].begin()
        await until(lambda: cluster[2].broker is not None and len(cluster[2].broker.replicas) > 0)
        assert cluster[3].broker is not None
        topic = image(cluster, 3).topics["orders"]
        await cluster[3].broker.controller_election.active.topics.delete(topic.name, topic.id)
        await starting
        cluster.simulation.loop.job_delay_s_max = 0.05
        await create_orders(cluster, [1, 2])
        assert await write(cluster, 1, [b"new"]) == 0
        await until(lambda: len(state(cluster, seen_by=3).isr) == 2)
        (directory,) = cluster[2].broker.directories
        topic_id = directory.topic_id_of(TopicPartition("orders", PartitionIndex(0)))
        assert topic_id == image(cluster, 3).topics["orders"].id

    run(scenario, seed)
