"""Clients that some pairs of mechanisms need: each does one thing again and again until the stop.

Responses do not matter, except where the history needs them: whatever the cluster accepted must
keep every guarantee.
"""

import asyncio
from contextlib import suppress
from functools import partial

from simulation.workload_context import TOPIC, WorkloadContext
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.coordinator import Coordinator
from suwi.client.group_offsets import offset_topics
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.env import Env
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim.random import SimRandom
from suwi.wire.versions import ApiKey

_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_PARTITIONS_ADDED_MAX = 3
EXPIRING_GROUP = "passers-by"
_RETENTION_MS = 300
_WITH_RETENTION_AT_MOST = 4
"""The last version of OffsetCommit that has a retention time."""
_OLD_MS = 25 * 60 * 60 * 1000
"""Older than `producer.id.expiration.ms`, which counts from the newest record of a producer."""
_ONE_WRITE = ProducerSettings(delivery_timeout_s=2, request_timeout_s=2)


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

    A retry after that is stored twice, as in Apache Kafka: they do not count as idempotent."""
    name, number = "old", 0
    while not await workload.stopped_within(random.uniform(0.2, 1.5)):
        client = workload.client(name)
        producer = Producer(client, env.clock, _ONE_WRITE)
        partition = random.choice(workload.partitions)
        value = f"{name}:{number}".encode()
        number += 1
        write = workload.history.send(name, str(partition), value)
        with suppress(BrokerError, OSError):
            index, old_ms = int(partition.partition), env.clock.now_ms() - _OLD_MS
            sent = await producer.send(TOPIC, value, partition=index, timestamp=old_ms)
            offset = (await sent).offset
            write.acked(offset if offset >= 0 else None)
        await producer.close()
        await client.close()
