"""Adopts a data directory written by Apache Kafka: creates the topics that the metadata lacks.

Topic names, topic ids and partition counts are read from the directory names and their metadata
files; leader epochs and producer ids from the logs; topic configuration from Kafka's own metadata
log, if it is in the same directory. `adopt` is the only entrance.
Invariants: adopted data is never deleted or reported as damaged because metadata about it is
missing; a transaction is adopted after all partitions that it may have written to.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from suwi.controller.topic_control import TopicControl
from suwi.coordinator.log_reader import LogReader
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.env.slices import Slices
from suwi.group.group_coordinator import OFFSETS_TOPIC
from suwi.log.kafka_metadata import read_topic_configs
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import run_steps
from suwi.metadata.image import PartitionState, Topic
from suwi.metadata.store import MetadataStore
from suwi.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig, parse_topic_config, supported_settings
from suwi.records.record import Marker
from suwi.replica.log_sync import sync_log
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator import TRANSACTION_STATE_TOPIC
from suwi.transaction.transaction_records import TRANSACTION_RECORDS

log = logging.getLogger(__name__)

# Kafka's metadata log, and internal topics of coordinators that Suwi does not have.
_INTERNAL_PREFIX = "__"
_COORDINATOR_TOPICS: Final = {
    OFFSETS_TOPIC: {"cleanup.policy": "compact", "compression.type": "producer"},
    TRANSACTION_STATE_TOPIC: {"cleanup.policy": "compact", "compression.type": "uncompressed"},
}
"""With the configuration that is used when theirs is unknown."""
# Used when the configuration is unknown: the topic may have been compacted, and the default
# retention would delete records older than a week.
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_IMPOSSIBLE_EPOCH: Final = 2**30


async def adopt(
    directories: LogDirectories,
    store: MetadataStore,
    known: Collection[str],
    admin: TopicControl,
    node_id: NodeId,
    defaults: TopicConfig,
) -> None:
    """Create topics for the partition directories that belong to no known topic.

    Raises OSError, KafkaStorageError.
    """
    found: dict[str, dict[int, LogDirectory]] = {}
    configs: dict[str, dict[str, str]] = {}
    for directory in directories.usable():
        configs.update(read_topic_configs(directory))
        unknown = [
            tp
            for tp in directory.found_partitions()
            if tp.topic not in known
            and (tp.topic in _COORDINATOR_TOPICS or not tp.topic.startswith(_INTERNAL_PREFIX))
        ]
        if unknown:
            directory.checkpoints.expect_gaps(unknown)
        for tp in unknown:
            found.setdefault(tp.topic, {})[tp.partition] = directory
    for name in _COORDINATOR_TOPICS:
        partitions = found.get(name, {})
        if len(partitions) != max(partitions, default=-1) + 1:
            # A group or transactional id belongs to a partition by how many there are.
            log.warning("topic not adopted: partitions are missing", extra={"topic": name})
            del found[name]
    producer_ids = ProducerIds(store)
    coordinator_epoch = -1
    # Its coordinator writes markers at once, and gives up those for topics that do not exist (T11).
    for name in sorted(found, key=lambda name: (name == TRANSACTION_STATE_TOPIC, name)):
        partitions = found[name]
        topic_id = _common_topic_id(name, partitions)
        if topic_id is None:
            log.warning(
                "topic not adopted: its partitions have different topic ids", extra={"topic": name}
            )
            continue
        unknown_config = _COORDINATOR_TOPICS.get(name, _KEEP_ALL)
        config = _usable(name, configs[name], defaults) if name in configs else unknown_config
        logs = await _open(name, topic_id, partitions, parse_topic_config(config, defaults))
        await producer_ids.skip(await _last_producer_id(name, logs))
        coordinator_epoch = max(coordinator_epoch, _last_coordinator_epoch(logs))
        # Markers of a coordinator with an older epoch than that of the last marker are refused.
        epoch_min = coordinator_epoch + 1 if name == TRANSACTION_STATE_TOPIC else 0
        topic = Topic(name, topic_id, config, _partition_states(logs, node_id, epoch_min))
        await admin.adopt(topic)
        log.info(
            "topic adopted",
            extra={"topic": name, "partitions": len(topic.partitions), "configs": config},
        )


def _common_topic_id(name: str, partitions: dict[int, LogDirectory]) -> TopicId | None:
    ids = {
        directory.topic_id_of(TopicPartition(name, PartitionIndex(index)))
        for index, directory in partitions.items()
    }
    return ids.pop() if len(ids) == 1 else None


async def _open(
    name: str, topic_id: TopicId, partitions: dict[int, LogDirectory], config: TopicConfig
) -> dict[int, PartitionLog]:
    loop = asyncio.get_running_loop()
    opened = {}
    for index, directory in partitions.items():
        tp = TopicPartition(name, PartitionIndex(index))
        steps = directory.opening(tp, topic_id, config, None, is_adopted=True)
        opened[index] = await loop.run_in_executor(None, run_steps, steps)
        # Above the recovery point the next start would take gaps between segments for damage.
        await sync_log(opened[index])
    for directory in dict.fromkeys(partitions.values()):
        await loop.run_in_executor(None, directory.checkpoints.recovery_points_job())
    return opened


async def _last_producer_id(name: str, logs: dict[int, PartitionLog]) -> int:
    """The highest producer id that the logs know; -1 if there is none."""
    used = _UsedProducerIds()
    for opened in logs.values():
        for producer in opened.producers.all():
            used.add(producer.producer_id)
        if name == TRANSACTION_STATE_TOPIC:
            end = opened.end_offset
            await LogReader(opened, TRANSACTION_RECORDS).replay(used, end, end, lambda: True)
    return used.last


class _UsedProducerIds:
    """Also those of transactional ids whose producers have written nothing."""

    def __init__(self) -> None:
        self.last = -1

    def add(self, *producer_ids: int) -> None:
        self.last = max(self.last, *producer_ids)

    def replay(self, record: CoordinatorRecord, _facts: RecordFacts) -> None:
        if record.value is not None:
            self.add(record.value.producer_id, record.value.next_producer_id)

    def replaying_marker(self, _marker: Marker, _facts: RecordFacts) -> Slices[None]:
        """`__transaction_state` has none of its own, but Kafka takes markers from any client."""
        yield from ()


def _last_coordinator_epoch(logs: dict[int, PartitionLog]) -> int:
    """The highest of the coordinators that have written markers; -1 if there are none. Kafka takes
    markers from any client, also with epochs that no leader reaches: these fence nobody here."""
    epochs = (
        producer.coordinator_epoch
        for opened in logs.values()
        for producer in opened.producers.all()
        if producer.coordinator_epoch < _IMPOSSIBLE_EPOCH
    )
    return max(epochs, default=-1)


def _partition_states(
    logs: dict[int, PartitionLog], node_id: NodeId, epoch_min: int
) -> tuple[PartitionState, ...]:
    states = []
    for index in range(max(logs) + 1):
        # The next leader epoch must be greater than every epoch in the log.
        epoch = max(logs[index].epochs.latest + 1 if index in logs else 0, epoch_min)
        states.append(PartitionState(node_id, LeaderEpoch(epoch), 0, (node_id,), (node_id,)))
    return tuple(states)


def _usable(topic: str, config: dict[str, str], defaults: TopicConfig) -> dict[str, str]:
    """The settings that Suwi supports; each of the others is logged."""
    usable, reasons = supported_settings(config, defaults)
    for reason in reasons:
        log.warning("setting not adopted", extra={"topic": topic, "reason": reason})
    return usable
