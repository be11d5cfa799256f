"""One replica by itself, on a simulated disk."""

from collections.abc import Callable
from uuid import UUID

from suwi.env import Disk, Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.model.ids import NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.leader_state import Proposal
from suwi.replica.log_preparation import Turns
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition
from suwi.replica.replica_log import OwnReplica, PartitionContext, PartitionStorage, ReplicaLog
from suwi.sim import ManualClock, SimDisk
from tests.supervision import tasks_that_must_not_fail

ORDERS = TopicPartition("orders", PartitionIndex(0))
ONE, TWO = NodeId(1), NodeId(2)
TOPIC_ID = TopicId(UUID(int=1))


def make_partition(
    on_loss: Callable[[Loss], None] = lambda _: None, topic_id: TopicId = TOPIC_ID
) -> Partition:
    directories, context = _context(on_loss, SimDisk(), lambda *_: None, "/data")
    return _partition(0, directories, context, topic_id)


def partition_and_directory(
    on_loss: Callable[[Loss], None] = lambda _: None,
    disk: Disk | None = None,
    propose: Callable[[ReplicaLog, Proposal], None] = lambda *_: None,
    path: str = "/data",
) -> tuple[Partition, LogDirectory]:
    directories, context = _context(on_loss, disk or SimDisk(), propose, path)
    (directory,) = directories
    return _partition(0, directories, context), directory


def partitions(count: int) -> list[Partition]:
    """Several partitions of one topic, on one broker."""
    directories, context = _context(lambda _: None, SimDisk(), lambda *_: None, "/data")
    return [_partition(index, directories, context) for index in range(count)]


def _context(
    on_loss: Callable[[Loss], None],
    disk: Disk,
    propose: Callable[[ReplicaLog, Proposal], None],
    path: str,
) -> tuple[LogDirectories, PartitionContext]:
    clock = ManualClock()
    env = Env(clock=clock, disk=disk, random=SystemRandom())
    directories = LogDirectories(env, [path], FileCache(disk, 1000))
    directories.open()
    for directory in directories:
        directory.begin()
    tasks = tasks_that_must_not_fail()
    context = PartitionContext(
        ONE,
        clock,
        Turns(),
        10.0,
        lambda node, epoch: True,
        tasks,
        directories.problems,
        propose=propose,
        on_loss=on_loss,
    )
    return directories, context


def _partition(
    index: int,
    directories: LogDirectories,
    context: PartitionContext,
    topic_id: TopicId = TOPIC_ID,
) -> Partition:
    tp = TopicPartition("orders", PartitionIndex(index))
    storage = PartitionStorage(directories, tp, topic_id, lambda _: OwnReplica(), True)
    return Partition(tp, topic_id, TopicConfig(), storage, context)
