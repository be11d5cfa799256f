"""The file names in a data directory, as in Apache Kafka."""

from collections.abc import Iterable

from suwi.model.ids import Offset, PartitionIndex, TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
DAMAGED = ".damaged"
"""Suwi's own: a file of a damaged log that was discarded, kept until its replica is in sync."""
DELETE_DIR = "-delete"
"""The directory of a deleted partition, to be removed."""
STRAY_DIR = "-stray"
"""A directory with records of an unknown topic. Only the operator removes it."""

SEGMENT_FILES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""The files of one segment, in the order of their renames."""

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

SMALL_FILES = (LEADER_EPOCHS, PARTITION_METADATA)
"""Files beside a partition's segments that must survive a power loss with them."""

META_PROPERTIES = "meta.properties"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
RUNNING = ".suwi-running"
"""Suwi's own: the boot id of the machine when the directory was last used."""
SPACE_PROBE = ".suwi-space-probe"
"""Suwi's own: written and removed while the disk is full."""


def offset_name(offset: Offset) -> str:
    """The file name for an offset: `00000000000000000042`."""
    return f"{offset:020d}"


def parse_offset_name(name: str, suffix: str) -> Offset | None:
    """The offset in a file name; None for other files."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return Offset(int(stem))


def is_segment(name: str) -> bool:
    return parse_offset_name(name, LOG) is not None


def offsets_by_suffix(found: Iterable[str]) -> dict[str, list[Offset]]:
    """The offsets in file names by suffix, in the order of the names; one pass over the names."""
    offsets: dict[str, list[Offset]] = {}
    for name in found:
        stem = name[:20]
        if len(stem) == 20 and stem.isascii() and stem.isdigit():
            offsets.setdefault(name[20:], []).append(Offset(int(stem)))
    return offsets


def partition_dir_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def renamed_dir_name(partition: TopicPartition, unique: str, ending: str) -> str:
    """`orders-0.{unique}-delete` or `-stray`. A long topic name is truncated so that the whole name
    stays within 255 bytes."""
    suffix = f"-{partition.partition}.{unique}{ending}"
    return partition.topic[: 255 - len(suffix)] + suffix


def parse_partition_dir_name(name: str) -> TopicPartition | None:
    topic, dash, index = name.rpartition("-")
    if not dash or not topic or not (index.isascii() and index.isdigit()):
        return None
    return TopicPartition(topic, PartitionIndex(int(index)))
