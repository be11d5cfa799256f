"""OffsetForLeaderEpoch in each served version."""

import asyncio

import pytest

from suwi.client.connection import PeerConnection
from suwi.testing import Cluster
from suwi.wire.versions import APIS, ApiKey

API = APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH]


@pytest.mark.parametrize("version", range(API.min_version, API.max_version + 1))
def test_every_version_returns_the_end_offset_of_an_epoch(version: int) -> None:
    """Version 2 has no replica id: librdkafka sends it, as a consumer."""

    async def ask(address: str) -> tuple[int, int]:
        host, port = address.split(":")
        connection = await PeerConnection.open(host, int(port))
        partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        topics = [{"topic": "water", "partitions": [partition]}]
        answer = await connection.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -2, "topics": topics}
        )
        await connection.close()
        (found,) = answer.topics[0].partitions
        assert not found.error_code
        return found.leader_epoch, found.end_offset

    with Cluster(brokers=1) as cluster:
        cluster.create_topic("water")
        assert asyncio.run(ask(cluster.address(1))) == (0, 0)
