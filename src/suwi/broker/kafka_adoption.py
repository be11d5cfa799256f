"""Adopts a data directory written by Apache Kafka: creates the topics that the metadata lacks.

Topic names, topic ids and partition counts are read from the directory names and their metadata
files; leader epochs and producer ids from the logs; topic configuration from Kafka's own metadata
log, if it is in the same directory. `adopt` is the only entrance.
Invariant: adopted data is never deleted or reported as damaged because metadata about it is
missing.
"""

import asyncio
import logging
from collections.abc import Collection

from suwi.broker.group_coordinator import OFFSETS_TOPIC
from suwi.broker.kafka_metadata import read_topic_configs
from suwi.controller.topic_control import TopicControl
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import run_steps
from suwi.metadata.image import PartitionState, Topic
from suwi.metadata.store import MetadataStore
from suwi.model.config_kinds import BadConfig
from suwi.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig, parse_topic_config
from suwi.transaction.producer_ids import ProducerIds

log = logging.getLogger(__name__)

# Kafka's metadata log, and internal topics of coordinators that Suwi does not have.
_INTERNAL_PREFIX = "__"
_OFFSETS_TOPIC_CONFIG = {"cleanup.policy": "compact", "compression.type": "producer"}
# Used when the configuration is unknown: the topic may have been compacted, and the default
# retention would delete records older than a week.
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


async def adopt(
    directories: LogDirectories,
    store: MetadataStore,
    known: Collection[str],
    admin: TopicControl,
    node_id: NodeId,
    defaults: TopicConfig,
) -> None:
    """Create topics for the partition directories that belong to no known topic. Raises OSError."""
    found: dict[str, dict[int, LogDirectory]] = {}
    configs: dict[str, dict[str, str]] = {}
    for directory in directories.usable():
        configs.update(read_topic_configs(directory))
        unknown = [
            tp
            for tp in directory.found_partitions()
            if tp.topic not in known and _is_of_use(tp.topic)
        ]
        if unknown:
            directory.checkpoints.expect_gaps(unknown)
        for tp in unknown:
            found.setdefault(tp.topic, {})[tp.partition] = directory
    offsets = found.get(OFFSETS_TOPIC, {})
    if len(offsets) != max(offsets, default=-1) + 1:
        # A group belongs to a partition by how many there are.
        log.warning("groups not adopted: partitions of theirs are missing")
        del found[OFFSETS_TOPIC]
    producer_ids = ProducerIds(store)
    for name, partitions in sorted(found.items()):
        topic_id = _common_topic_id(name, partitions)
        if topic_id is None:
            log.warning(
                "topic not adopted: its partitions have different topic ids", extra={"topic": name}
            )
            continue
        unknown_config = _OFFSETS_TOPIC_CONFIG if name == OFFSETS_TOPIC else _KEEP_ALL
        config = _usable(name, configs[name], defaults) if name in configs else unknown_config
        logs = await _open(name, topic_id, partitions, parse_topic_config(config, defaults))
        used_producer_ids = [
            p.producer_id for opened in logs.values() for p in opened.producers.all()
        ]
        await producer_ids.skip(max(used_producer_ids, default=-1))
        topic = Topic(name, topic_id, config, _partition_states(logs, node_id))
        await admin.adopt(topic)
        log.info(
            "topic adopted",
            extra={"topic": name, "partitions": len(topic.partitions), "configs": config},
        )


def _is_of_use(topic: str) -> bool:
    return topic == OFFSETS_TOPIC or not topic.startswith(_INTERNAL_PREFIX)


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
        steps = directory.opening(tp, topic_id, config, None)
        opened[index] = await loop.run_in_executor(None, run_steps, steps)
    return opened


def _partition_states(logs: dict[int, PartitionLog], node_id: NodeId) -> tuple[PartitionState, ...]:
    states = []
    for index in range(max(logs) + 1):
        # The next leader epoch must be greater than every epoch in the log.
        epoch = LeaderEpoch(logs[index].epochs.latest + 1 if index in logs else 0)
        states.append(PartitionState(node_id, epoch, 0, (node_id,), (node_id,)))
    return tuple(states)


def _usable(topic: str, config: dict[str, str], defaults: TopicConfig) -> dict[str, str]:
    """The settings that Suwi supports; each of the others is logged."""
    usable = {}
    for key, value in config.items():
        try:
            parse_topic_config({key: value}, defaults)
            usable[key] = value
        except BadConfig as error:
            log.warning("setting not adopted", extra={"topic": topic, "reason": str(error)})
    return usable
