"""The topics of coordinators: made on first use, once there are enough brokers (requirement G4)."""

import logging
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.group.group_coordinator import OFFSETS_TOPIC
from suwi.model.ids import NodeId
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_simulated_cluster import image, run, until


async def find_coordinator(client: PeerConnection) -> Any:
    fields = {"key_type": 0, "coordinator_keys": ["billing"]}
    (found,) = (await client.call(ApiKey.FIND_COORDINATOR, 6, fields)).coordinators
    return found


def test_the_topic_of_offsets_waits_for_enough_brokers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        cluster[3].kill()
        await until(lambda: NodeId(3) not in image(cluster, 1).registered_brokers)
        client = await PeerConnection.open("b1", PORT)
        for _ in range(3):
            found = await find_coordinator(client)
            assert found.error_code == ErrorCode.coordinator_not_available
        logged = [r for r in caplog.records if r.getMessage() == "internal topic not created"]
        assert len(logged) == 1  # not for each request
        assert "replication factor" in logged[0].__dict__["reason"]
        await cluster[3].start()
        await until(lambda: NodeId(3) in image(cluster, 1).unfenced_brokers)
        assert (await find_coordinator(client)).error_code == ErrorCode.none
        topic = image(cluster, 1).topics[OFFSETS_TOPIC]
        assert {len(state.replicas) for state in topic.partitions} == {3}
        assert topic.configs["min.insync.replicas"] == "2"
        assert topic.configs["cleanup.policy"] == "compact"

    with caplog.at_level(logging.WARNING):
        run(scenario)
