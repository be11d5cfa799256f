"""A client without any right that tries what would harm others: markers, and internal topics.

It sends markers for the producers that partitions know, with epochs of all kinds, and wants to
extend, delete and reconfigure the topics of coordinators. Whether it has done harm is found where
others look: copies that are torn or lost, groups without offsets. Raises if what is always to be
refused is not.
"""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from kio.schema.errors import ErrorCode

from simulation.workload_context import WorkloadContext
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.transaction_admin import PartitionProducer, producers_of
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.sim.random import SimRandom
from suwi.wire.versions import ApiKey

_MARKER_CHANCE: Final = 0.8
_EPOCH_MAX: Final = 2**31 - 1
_BAD_CONFIGS: Final = (
    ("cleanup.policy", "delete"),
    ("cleanup.policy", None),
    ("retention.ms", "1"),
    ("max.message.bytes", "100"),
)


class Stranger:
    def __init__(self, workload: WorkloadContext, random: SimRandom) -> None:
        self._workload = workload
        self._random = random
        self._client = workload.client("stranger")

    async def run(self) -> None:
        pause_s_max = self._random.choice((0.2, 1.0, 3.0))
        while not await self._workload.stopped_within(self._random.uniform(0, pause_s_max)):
            if self._random.chance(_MARKER_CHANCE):
                with suppress(BrokerError, OSError):
                    await self._send_marker()
            else:
                await self._change_internal_topic()
        await self._client.close()

    async def _send_marker(self) -> None:
        topic = self._random.choice(await self._client.topics())
        partition = TopicPartition(topic.name, self._random.choice(topic.partitions).index)
        producers = (await producers_of(self._client, [partition]))[partition]
        if isinstance(producers, BrokerError) or not producers:
            return
        marker = self._marker(partition, self._random.choice(producers))
        link, _ = await self._client.leader(partition)
        answer = await link.call(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        error = answer.markers[0].topics[0].partitions[0].error_code
        assert not (marker["transaction_result"] and error is ErrorCode.none), "it may commit"

    def _marker(self, partition: TopicPartition, known: PartitionProducer) -> dict[str, Any]:
        random, (producer_id, epoch) = self._random, known.producer
        return {
            "producer_id": producer_id,
            "producer_epoch": random.choice((epoch, epoch, min(epoch + 1, 32_767), 32_767)),
            "transaction_result": random.chance(0.3),
            "topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}],
            "coordinator_epoch": max(
                0, random.choice((known.coordinator_epoch, known.coordinator_epoch, _EPOCH_MAX))
            ),
            "transaction_version": random.choice((0, 0, 2)),
        }

    async def _change_internal_topic(self) -> None:
        admin, name = Admin(self._client), self._random.choice(sorted(INTERNAL_TOPICS))
        change: Awaitable[None]
        kind = self._random.choice(("grow", "delete", "configure"))
        if kind == "grow":
            change = admin.add_partitions(name, 57)
        elif kind == "delete":
            change = admin.delete_topic(name)
        else:
            key, value = self._random.choice(_BAD_CONFIGS)
            change = admin.alter_configs(Resource(ResourceType.TOPIC, name), {key: value})
        try:
            await change
        except (BrokerError, OSError):
            return
        raise AssertionError(f"{name} was changed: {kind}")
