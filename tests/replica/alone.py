"""One replica by itself, on a simulated disk."""

from collections.abc import Callable
from uuid import UUID

from suwi.env import Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.loss import Loss
from suwi.replica.partition import Home, Partition, Surroundings
from suwi.sim import ManualClock, SimDisk

ORDERS = TopicPartition("orders", PartitionIndex(0))
ONE, TWO = NodeId(1), NodeId(2)


def make_partition(on_loss: Callable[[Loss], None] = lambda _: None) -> Partition:
    return partition_and_directory(on_loss)[0]


def partition_and_directory(
    on_loss: Callable[[Loss], None] = lambda _: None, disk: SimDisk | None = None
) -> tuple[Partition, LogDirectory]:
    clock, disk = ManualClock(), disk or SimDisk()
    env = Env(clock=clock, disk=disk, random=SystemRandom())
    directory = LogDirectory(env, "/data", FileCache(disk, 100))
    directory.open()
    directory.begin()
    topic_id = TopicId(UUID(int=1))
    home = Home(
        open_log=lambda config: directory.log_of(ORDERS, topic_id, config, None),
        checkpointed_watermark=lambda: directory.high_watermarks.get(ORDERS, Offset(0)),
        lower_watermark=lambda offset: directory.lower_watermark(ORDERS, offset),
        write_watermarks=directory.write_lowered_watermarks,
    )
    around = Surroundings(ONE, clock, 10.0, lambda node, epoch: True, on_loss=on_loss)
    return Partition(ORDERS, topic_id, TopicConfig(), home, around), directory
