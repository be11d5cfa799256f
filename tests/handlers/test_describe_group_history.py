"""DescribeGroupHistory over the wire: asked of the coordinator, refused elsewhere."""

import asyncio
import json
from typing import Any

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster as Client
from suwi.client.connection import ConnectionLost
from suwi.client.group_offsets import commit_offsets
from suwi.client.groups import group_history
from suwi.env import SystemRandom
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition
from suwi.testing import Cluster
from suwi.wire.versions import ApiKey

NOT_COORDINATOR = 16


async def ask(client: Client, node: NodeId, body: Any) -> dict[str, Any]:
    link = await client.link(node)
    answer = await link.send(ApiKey.DESCRIBE_GROUP_HISTORY, 0, [json.dumps(body).encode()])
    return dict(json.loads(bytes(answer)))


def test_only_the_coordinator_of_a_group_tells_its_history() -> None:
    async def scenario(servers: str) -> None:
        place = TopicPartition("orders", PartitionIndex(0))
        async with Client(parse_addresses(servers), random=SystemRandom()) as client:
            await commit_offsets(client, "g", {place: Offset(0)})
            coordinator = (await group_history(client, "g")).coordinator
            for node in client.brokers:
                found = await ask(client, node, {"group": "g"})
                is_coordinator = node == coordinator
                assert found["error"] == (0 if is_coordinator else NOT_COORDINATOR)
                assert found["exists"] is is_coordinator
                assert found["rebalances"] == []
            assert not (await ask(client, coordinator, {"group": "g"}))["moves"]
            for bad in ({}, {"group": 7}, []):
                with pytest.raises(ConnectionLost):
                    await ask(client, coordinator, bad)

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders")
        asyncio.run(scenario(cluster.bootstrap_servers))
