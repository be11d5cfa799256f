"""Partition directories with an unknown topic.

`partition.metadata` has the topic id. A power loss may leave that file empty, and damage can make
it unreadable: then the records beside it may be from the topic or from a deleted topic with the
same name (hazard 21). Records of an unknown topic are not deleted.
"""

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_scan import scan_batches
from suwi.log.checkpoints import topic_id_text
from suwi.model.errors import CorruptMessage, KafkaStorageError
from suwi.model.ids import TopicId, TopicPartition


class UnreadableTopicId(KafkaStorageError):
    """The directory has records, and their topic is unknown."""

    def __init__(self, partition: TopicPartition, directory: str, topic_id: TopicId) -> None:
        super().__init__(
            f"{partition} is offline: {directory}/{names.PARTITION_METADATA} is unreadable, so it "
            "is not known which topic the records there belong to. They are kept. To use them, "
            f"stop the broker and run: suwi repair partition-metadata {directory} "
            f"--topic-id {topic_id_text(topic_id)}"
        )


def holds_batches(disk: Disk, directory: str) -> bool:
    """Whether some segment of a partition's directory starts with a valid batch. Raises OSError.

    Batches after invalid bytes are not part of a log: recovery would remove them.
    """
    found = disk.list_dir(directory)
    paths = [f"{directory}/{name}" for name in found if names.is_segment(name)]
    return any(_starts_with_a_batch(disk, path) for path in paths)


def _starts_with_a_batch(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    try:
        for _ in scan_batches(file, 0, file.size()):
            return True
    except CorruptMessage:
        pass
    finally:
        file.close()
    return False
