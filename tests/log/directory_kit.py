"""A data directory with its logs, for tests: opened, written to, synced and stopped."""

from collections.abc import Iterable
from uuid import UUID

from suwi.env import Disk, Env, SystemRandom
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import LogDirectory
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import run_steps
from suwi.model.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.sim import ManualClock
from tests.log.kit import NOW_MS, batch_of

ORDERS = TopicPartition("orders", PartitionIndex(0))
FIRST_ID, SECOND_ID = TopicId(UUID(int=1)), TopicId(UUID(int=2))
Place = tuple[Disk, str]


def directory_at(disk: Disk, path: str) -> LogDirectory:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    return LogDirectory(env, path, FileCache(disk, 100))


def begun(disk: Disk, path: str) -> LogDirectory:
    directory = directory_at(disk, path)
    directory.open()
    directory.begin()
    return directory


def log_of(
    directory: LogDirectory,
    partition: TopicPartition = ORDERS,
    topic_id: TopicId = FIRST_ID,
    *,
    has_other_replicas: bool = False,
    is_out_of_sync: bool = False,
) -> PartitionLog:
    opening = directory.opening(
        partition,
        topic_id,
        TopicConfig(),
        None,
        has_other_replicas=has_other_replicas,
        is_out_of_sync=is_out_of_sync,
    )
    return run_steps(opening)


def append(log: PartitionLog, count: int, value: bytes = b"v") -> None:
    for _ in range(count):
        batch = batch_of(value=value)
        log.append_as_leader(memoryview(batch), read_header(batch), LeaderEpoch(0), NOW_MS)


def sync(log: PartitionLog) -> None:
    job = log.durability.sync_job()
    if job is not None:
        job.run()
        log.durability.synced(job)


def stop(directory: LogDirectory) -> None:
    for log in directory.opened_logs():
        log.finish()
        sync(log)
    directory.close(clean=True)


def write_high_watermarks(
    directory: LogDirectory, known: Iterable[tuple[TopicPartition, Offset]]
) -> bool:
    return directory.checkpoints.write(directory.checkpoints.high_watermarks_job(known))


def write_recovery_points(directory: LogDirectory) -> bool:
    return directory.checkpoints.write(directory.checkpoints.recovery_points_job())


def write_start_offsets(directory: LogDirectory) -> bool:
    return directory.checkpoints.write(directory.checkpoints.start_offsets_job())
