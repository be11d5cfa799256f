"""Taking over data that the metadata does not know: a directory that Apache Kafka wrote.

Names, ids and the number of partitions come from the directories, leader epochs from the logs. What
only Kafka's metadata knew, above all the topics' configuration, is not there to be found.
"""

import asyncio
import logging
from collections.abc import Collection

from suwi.controller.topic_admin import TopicAdmin
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.metadata.image import PartitionState, Topic
from suwi.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig

log = logging.getLogger(__name__)

_OF_KAFKA_ITSELF = "__"  # Its metadata log, and topics whose content only its coordinators know.


async def adopt(
    directories: LogDirectories,
    known: Collection[str],
    admin: TopicAdmin,
    node_id: NodeId,
    defaults: TopicConfig,
) -> list[Topic]:
    """Make topics of the directories that belong to none. Raises OSError."""
    found: dict[str, dict[int, LogDirectory]] = {}
    for directory in directories.usable():
        for tp in directory.found_partitions():
            if tp.topic not in known and not tp.topic.startswith(_OF_KAFKA_ITSELF):
                found.setdefault(tp.topic, {})[tp.partition] = directory
    adopted = []
    for name, partitions in sorted(found.items()):
        ids = {
            directory.topic_id_of(TopicPartition(name, PartitionIndex(index)))
            for index, directory in partitions.items()
        }
        topic_id = ids.pop()
        if topic_id is None or ids:
            log.warning("not adopted: the partitions do not agree on an id", extra={"topic": name})
            continue
        topic = await _read_topic(name, topic_id, partitions, node_id, defaults)
        await admin.adopt(topic)
        adopted.append(topic)
        log.info("topic adopted", extra={"topic": topic.name, "partitions": len(topic.partitions)})
    return adopted


async def _read_topic(
    name: str,
    topic_id: TopicId,
    partitions: dict[int, LogDirectory],
    node_id: NodeId,
    defaults: TopicConfig,
) -> Topic:
    loop = asyncio.get_running_loop()
    states = []
    for index in range(max(partitions) + 1):
        epoch = LeaderEpoch(0)
        if index in partitions:
            tp = TopicPartition(name, PartitionIndex(index))
            opened = await loop.run_in_executor(
                None, partitions[index].log_of, tp, topic_id, defaults, None
            )
            # A new leader begins: its epoch must be above every one in the log.
            epoch = LeaderEpoch(opened.epochs.latest + 1)
        states.append(PartitionState(node_id, epoch, 0, (node_id,), (node_id,)))
    return Topic(name, topic_id, {}, tuple(states))
