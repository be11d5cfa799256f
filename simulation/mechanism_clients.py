"""Clients that some pairs of mechanisms need: each does one thing again and again until the stop.

Responses do not matter, except where the history needs them: whatever the cluster accepted must
keep every guarantee.
"""

import asyncio
from contextlib import suppress
from functools import partial
from itertools import pairwise

from simulation.history import ACKS_ALL
from simulation.workload_context import TOPIC, WorkloadContext
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.client.coordinator import Coordinator
from suwi.client.errors import error_from
from suwi.client.group_offsets import offset_topics
from suwi.client.identity import Identities
from suwi.client.own_apis import PartitionWatch
from suwi.client.quotas import ClientQuotas
from suwi.client.versioned_connection import VersionedConnection
from suwi.env import Env
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.security.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    USER,
    Entity,
)
from suwi.sim.random import SimRandom
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import APIS, ApiKey

_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_PARTITIONS_ADDED_MAX = 3
EXPIRING_GROUP = "passers-by"
_RETENTION_MS = 300
_WITH_RETENTION_AT_MOST = 4
"""The last version of OffsetCommit that has a retention time."""
_OLD_MS = 25 * 60 * 60 * 1000
"""Older than `producer.id.expiration.ms`, which counts from the newest record of a producer."""
_ONE_WRITE_S = 3.0
_ALL_CLIENTS: Entity = ((USER, "ANONYMOUS"),)
_QUOTAS = {
    PRODUCER_BYTE_RATE: (150.0, 400.0, 1_200.0),
    CONSUMER_BYTE_RATE: (150.0, 400.0, 1_200.0),
    CONTROLLER_MUTATION_RATE: (0.1, 0.3, 1.0),
}
"""Less and more than what clients use of one broker. Not of request time: here none passes while a
request is handled."""
_ASKED_TIMES = 30
_ASK_EACH_S = 0.1
_PRODUCE_VERSION = APIS[ApiKey.PRODUCE].max_version


async def alter_min_insync(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """Change `min.insync.replicas` to any value that the partitions can reach.

    The budget stays: a machine loses power only while every replica is in sync, and what is
    committed with a lower minimum is not on a machine that may lose it (`FaultPlan`)."""
    client = workload.client("min.insync")
    topic = Resource(ResourceType.TOPIC, TOPIC)
    while not await workload.stopped_within(random.uniform(0.2, 2)):
        value = str(random.between(1, workload.shape.replication_factor))
        with suppress(BrokerError, OSError):
            await Admin(client).alter_configs(topic, {"min.insync.replicas": value})
    await client.close()


async def throttle(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """Throttle the replicas of the topic, and end that now and then; for good before all is healed,
    as an operator does who waits for replicas to catch up."""
    client = workload.client("throttle")
    topic = Resource(ResourceType.TOPIC, TOPIC)
    is_throttled = True
    while is_throttled or not workload.is_calm:
        is_throttled = not workload.is_calm and (not is_throttled or random.chance(0.8))
        value = "*" if is_throttled else None
        try:
            await Admin(client).alter_configs(topic, dict.fromkeys(_THROTTLED, value))
        except (BrokerError, OSError):
            is_throttled = True  # Perhaps.
        await asyncio.sleep(random.uniform(0.2, 2))
    await client.close()


async def limit_clients(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """Give all clients together quotas, others now and then; none from before all is healed on:
    what they have used is made up for by then."""
    client = workload.client("quotas")
    has_quotas = True
    while has_quotas or not workload.is_calm:
        has_quotas = not workload.is_calm and (not has_quotas or random.chance(0.8))
        quotas = {
            key: random.choice(values) if has_quotas else None for key, values in _QUOTAS.items()
        }
        try:
            await ClientQuotas(client).alter(_ALL_CLIENTS, quotas)
        except (BrokerError, OSError):
            has_quotas = True  # Perhaps.
        await asyncio.sleep(random.uniform(0.5, 3))
    await client.close()


async def watch_partitions(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """As the console: ask all brokers about one partition for a while, then about another one."""
    client = workload.client("watch")
    while not await workload.stopped_within(random.uniform(0, 4)):
        partition = random.choice(workload.partitions)
        with suppress(BrokerError, OSError):
            await client.refresh([partition.topic])
        asked = [_watch(workload, client, node, partition) for node in client.brokers]
        await asyncio.gather(*asked)
    await client.close()


async def _watch(
    workload: WorkloadContext, client: Cluster, node: NodeId, partition: TopicPartition
) -> None:
    watch, last = PartitionWatch(partition), 0
    link: VersionedConnection | None = None
    for _ in range(_ASKED_TIMES):
        with suppress(BrokerError, OSError, TimeoutError):
            async with asyncio.timeout(1):
                if link is None or not link.is_open:
                    link = await client.open_link(node)
                told = await watch.read(link)
            serials = [event["serial"] for event in told.events]
            numbers = [last, *serials, told.last + 1]
            assert all(one < other for one, other in pairwise(numbers)), f"{node} tells {numbers}"
            last = told.last
        if await workload.stopped_within(_ASK_EACH_S):
            break
    if link is not None:
        link.abort()


async def grow(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """Add partitions. Clients use one as soon as a broker knows it."""
    client = workload.client("grow")
    most = len(workload.partitions) + _PARTITIONS_ADDED_MAX
    while not await workload.stopped_within(random.uniform(0.5, 3)):
        count = len(workload.partitions)
        with suppress(BrokerError, OSError):
            if count < most:
                await Admin(client).add_partitions(TOPIC, count + 1)
        with suppress(BrokerError, OSError):
            known = len((await client.topic(TOPIC, fresh=True)).partitions)
            for index in range(count, known):
                workload.partitions.append(TopicPartition(TOPIC, PartitionIndex(index)))
    await client.close()


async def expire_offsets(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    """Commit offsets, of no member, that expire soon."""
    client = workload.client("passer-by")
    coordinator = Coordinator(client, EXPIRING_GROUP)
    while not await workload.stopped_within(random.uniform(0.2, 1.5)):
        fields = {
            "group_id": EXPIRING_GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": _RETENTION_MS,
            "topics": offset_topics({random.choice(workload.partitions): Offset(1)}),
        }
        commit = partial(
            coordinator.call, ApiKey.OFFSET_COMMIT, fields, at_most=_WITH_RETENTION_AT_MOST
        )
        with suppress(BrokerError, OSError):
            await coordinator.ask(commit)
    await coordinator.close()
    await client.close()


async def expire_producers(workload: WorkloadContext, env: Env, random: SimRandom) -> None:
    """Write records that are so old that their producers expire.

    Each is sent once: after that a retry would be stored twice, as in Apache Kafka."""
    name, number, identity = "old", 0, None
    client = workload.client(name)
    identities = Identities(client)
    while not await workload.stopped_within(random.uniform(0.2, 1.5)):
        partition = random.choice(workload.partitions)
        value = f"{name}:{number}".encode()
        number += 1
        write = workload.history.send(name, str(partition), value)
        with suppress(BrokerError, OSError, TimeoutError):
            identity = await identities.other_than(identity)
            old_ms = env.clock.now_ms() - _OLD_MS
            batch = build_batch(
                [Record(timestamp=old_ms, value=value)],
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=0,
            )
            write.acked(await _send_once(client, partition, batch))
    await client.close()


async def _send_once(client: Cluster, partition: TopicPartition, batch: bytearray) -> int:
    """Returns the offset. Raises what refuses it."""
    link, place = await client.leader(partition)
    connection = await PeerConnection.open(link.address.host, link.address.port)
    try:
        topic = (partition.topic, place.topic.id, [(int(partition.partition), batch)])
        body = encode_produce_request(_PRODUCE_VERSION, None, ACKS_ALL, 2000, [topic])
        async with asyncio.timeout(_ONE_WRITE_S):
            answer = await connection.send(ApiKey.PRODUCE, _PRODUCE_VERSION, body)
    finally:
        connection.abort()
    produced = decode_produce_response(_PRODUCE_VERSION, answer).topics[0].partitions[0]
    if produced.error_code:
        client.mark_stale(partition.topic)
        raise error_from(produced.error_code)
    return produced.base_offset
