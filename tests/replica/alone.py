"""One replica by itself, on a simulated disk."""

from collections.abc import Callable
from uuid import UUID

from suwi.env import Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.home import Home
from suwi.replica.leadership import Proposal
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition, Surroundings
from suwi.replica.preparation import Turns
from suwi.sim import ManualClock, SimDisk

ORDERS = TopicPartition("orders", PartitionIndex(0))
ONE, TWO = NodeId(1), NodeId(2)


def make_partition(on_loss: Callable[[Loss], None] = lambda _: None) -> Partition:
    return partition_and_directory(on_loss)[0]


def partition_and_directory(
    on_loss: Callable[[Loss], None] = lambda _: None,
    disk: SimDisk | None = None,
    propose: Callable[[Partition, Proposal], None] = lambda *_: None,
) -> tuple[Partition, LogDirectory]:
    clock, disk = ManualClock(), disk or SimDisk()
    env = Env(clock=clock, disk=disk, random=SystemRandom())
    directories = LogDirectories(env, ["/data"], FileCache(disk, 100))
    directories.open()
    (directory,) = directories
    directory.begin()
    topic_id = TopicId(UUID(int=1))
    home = Home(directories, ORDERS, topic_id, lambda _: None, is_new=True)
    around = Surroundings(
        ONE, clock, Turns(), 10.0, lambda node, epoch: True, propose=propose, on_loss=on_loss
    )
    return Partition(ORDERS, topic_id, TopicConfig(), home, around), directory
