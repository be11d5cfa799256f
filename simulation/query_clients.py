"""Clients that only query: offsets by time, the newest offset, and floods of expensive requests."""

import asyncio

from simulation.workload_context import WorkloadContext
from suwi.client.connection import PeerConnection
from suwi.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from suwi.env import Env
from suwi.model.errors import BrokerError
from suwi.sim.random import SimRandom
from suwi.wire.codec import encode_request
from suwi.wire.versions import APIS, ApiKey

_FLOOD_MAX = 40
_ANSWERS_S = 10.0


async def look_up(workload: WorkloadContext, env: Env, random: SimRandom) -> None:
    """Look up offsets by time, one request after the other, and record the responses."""
    name = "look up"
    client = workload.client(name)
    began_ms = env.clock.now_ms()
    while not await workload.stopped_within(random.uniform(0, 1.0)):
        partition = random.choice(workload.partitions)
        asked = random.choice((LATEST, LATEST, MAX_TIMESTAMP, EARLIEST, 0))
        if asked == 0:
            asked = random.between(began_ms, env.clock.now_ms())
        try:
            found = (await list_offsets(client, {partition: asked}))[partition]
        except (BrokerError, OSError):
            continue
        workload.history.looked_up(
            name,
            str(partition),
            asked,
            offset=found.offset,
            timestamp=found.timestamp,
            leader_epoch=found.leader_epoch,
        )
    await client.close()


async def flood(workload: WorkloadContext, random: SimRandom) -> None:
    """Pipelined Metadata and DescribeConfigs on one connection, which may close it early."""
    while not await workload.stopped_within(random.uniform(0.5, 3)):
        address = random.choice(workload.addresses)
        try:
            connection = await PeerConnection.open(address.host, address.port)
        except OSError:
            continue
        requests = [_request(random) for _ in range(random.between(2, _FLOOD_MAX))]
        answers = [connection.send(*request) for request in requests]
        try:
            if random.chance(0.5):
                async with asyncio.timeout(_ANSWERS_S):
                    for answer in answers:
                        await answer
        except (OSError, TimeoutError):
            pass
        for answer in answers:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()
        connection.abort()


def _request(random: SimRandom) -> tuple[ApiKey, int, list[bytes]]:
    if random.chance(0.5):
        api, fields = ApiKey.METADATA, _ALL_TOPICS
    else:
        api, fields = ApiKey.DESCRIBE_CONFIGS, _SOME_CONFIGS
    version = APIS[api].max_version
    return api, version, [encode_request(api, version, fields)]


_ALL_TOPICS: dict[str, object] = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
_SOME_CONFIGS: dict[str, object] = {
    "resources": [
        {"resource_type": 2, "resource_name": "orders", "configuration_keys": None},
        {"resource_type": 4, "resource_name": "1", "configuration_keys": None},
    ],
    "include_synonyms": True,
    "include_documentation": False,
}
