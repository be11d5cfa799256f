"""A data directory: its identity, its lock, and its state across restarts."""

import errno
import json
from uuid import UUID

import pytest

from suwi.env import Disk, Env, SystemRandom
from suwi.log import names
from suwi.log.directory_identity import ForeignDirectory
from suwi.log.file_cache import FileCache
from suwi.log.log_directory import DirectoryInUse, LogDirectory
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import TURN, run_steps
from suwi.log.stray import UnreadableTopicId
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.sim import ManualClock, SimDisk, SimRandom
from tests.log.kit import NOW_MS, batch_of, values_in

ORDERS = TopicPartition("orders", PartitionIndex(0))
FIRST_ID, SECOND_ID = TopicId(UUID(int=1)), TopicId(UUID(int=2))
Place = tuple[Disk, str]


def _directory(disk: Disk, path: str) -> LogDirectory:
    env = Env(clock=ManualClock(), disk=disk, random=SystemRandom())
    return LogDirectory(env, path, FileCache(disk, 100))


def _begun(disk: Disk, path: str) -> LogDirectory:
    directory = _directory(disk, path)
    directory.open()
    directory.begin()
    return directory


def _log(
    directory: LogDirectory,
    partition: TopicPartition = ORDERS,
    topic_id: TopicId = FIRST_ID,
    *,
    has_other_replicas: bool = False,
) -> PartitionLog:
    return directory.log_of(
        partition, topic_id, TopicConfig(), None, has_other_replicas=has_other_replicas
    )


def _append(log: PartitionLog, count: int, value: bytes = b"v") -> None:
    for _ in range(count):
        batch = batch_of(value=value)
        log.append_as_leader(memoryview(batch), read_header(batch), LeaderEpoch(0), NOW_MS)


def _sync(log: PartitionLog) -> None:
    job = log.sync_job()
    if job is not None:
        job.run()
        log.synced(job)


def _stop(directory: LogDirectory) -> None:
    for log in directory.opened_logs():
        log.finish()
        _sync(log)
    directory.close(clean=True)


# -- identity -------------------------------------------------------------------------------------


def test_a_directory_has_one_owner_at_a_time(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    first = _begun(disk, path)
    second = _directory(disk, path)
    with pytest.raises(DirectoryInUse, match="in use by another broker"):
        second.open()
    first.close(clean=False)
    second.open()
    second.close(clean=False)


def test_a_dead_process_holds_no_lock() -> None:
    disk = SimDisk()
    _begun(disk, "/data")
    _begun(disk.crash(), "/data")


def test_a_missing_directory_is_created(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    _begun(disk, f"{path}/a/b").close(clean=True)
    assert disk.exists(f"{path}/a/b/.kafka_cleanshutdown")


def test_a_new_directory_gets_the_brokers_identity_and_keeps_it(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    identity = directory.identify(NodeId(3), "cluster-1")
    assert (identity.cluster_id, identity.node_id) == ("cluster-1", 3)
    assert len(identity.directory_id) == 22
    lines = disk.read_bytes(f"{path}/meta.properties").decode().splitlines()
    assert {"version=1", "cluster.id=cluster-1", "node.id=3"} < set(lines)
    assert f"directory.id={identity.directory_id}" in lines
    assert directory.identify(NodeId(3), "other") == identity


def test_another_brokers_directory_is_refused(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    directory.identify(NodeId(3), "cluster-1")
    with pytest.raises(ForeignDirectory, match="broker 3"):
        directory.identify(NodeId(4), "cluster-1")


def test_an_older_apache_kafka_directory_is_accepted(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    text = "#\n#Mon Jan 01 00:00:00 UTC 2024\nbroker.id=1\nversion=0\ncluster.id=abc\n"
    disk.write_atomically(f"{path}/meta.properties", text.encode())
    assert directory.identify(NodeId(1), "").cluster_id == "abc"


@pytest.mark.parametrize("text", ["", "cluster.id=x\n", "node.id=one\ncluster.id=x\n", "\0\0\0"])
def test_a_damaged_identity_is_refused(disk_and_dir: Place, text: str) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    disk.write_atomically(f"{path}/meta.properties", text.encode())
    with pytest.raises(ForeignDirectory, match="damaged"):
        directory.identify(NodeId(1), "")


# -- shutdown -------------------------------------------------------------------------------------


def test_a_clean_shutdown_is_marked_until_the_directory_is_used_again(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    mark = f"{path}/{names.CLEAN_SHUTDOWN}"
    directory = _begun(disk, path)
    assert not disk.exists(mark)
    _stop(directory)
    assert json.loads(disk.read_bytes(mark))["version"] == 0
    again = _directory(disk, path)
    again.open()
    assert again.was_clean
    assert disk.exists(mark)
    again.begin()
    assert not disk.exists(mark)
    again.close(clean=False)
    third = _directory(disk, path)
    third.open()
    assert not third.was_clean


def test_a_directory_that_went_offline_is_not_marked_clean() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    directory.state.take_offline(OSError(errno.EIO, "broken"))
    directory.close(clean=True)
    assert not disk.exists("/data/.kafka_cleanshutdown")


@pytest.mark.parametrize("path", ["*recovery-point*", "*log-start-offset*", "*cleanshutdown*"])
def test_a_shutdown_whose_checkpoints_cannot_be_written_is_not_clean(path: str) -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    _append(_log(directory), 5)
    for log in directory.opened_logs():
        log.finish()
        _sync(log)
    disk.faults.fail("write", errno.ENOSPC, path=path)
    directory.close(clean=True)
    assert not disk.exists("/data/.kafka_cleanshutdown")
    again = _begun(disk, "/data")
    assert not again.was_clean
    assert len(values_in(_log(again))) == 5


def test_logs_are_the_same_after_a_restart(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    log = _log(directory)
    _append(log, 10)
    log.advance_start(Offset(4))
    before = values_in(log)
    directory.write_high_watermarks([(ORDERS, Offset(9))])
    _stop(directory)
    again = _begun(disk, path)
    assert again.found_partitions() == [ORDERS]
    assert again.high_watermarks == {ORDERS: 9}
    assert again.opened_logs() == []
    log = _log(again)
    assert log is _log(again)
    assert values_in(log) == before
    assert (log.start_offset, log.recovery_point) == (4, 10)


def test_the_checkpoints_have_apache_kafkas_names_and_form(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    log = _log(directory)
    _append(log, 10)
    log.advance_start(Offset(4))
    directory.write_high_watermarks([(ORDERS, Offset(9))])
    _stop(directory)
    for name, offset in [
        ("replication-offset-checkpoint", 9),
        ("recovery-point-offset-checkpoint", 10),
        ("log-start-offset-checkpoint", 4),
    ]:
        assert disk.read_bytes(f"{path}/{name}") == f"0\n1\norders 0 {offset}\n".encode()


def test_recovery_starts_at_the_checkpointed_recovery_point() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    log = _log(directory)
    _append(log, 10)
    _sync(log)
    directory.write_recovery_points()
    _append(log, 5)
    again = _begun(disk.crash(), "/data")
    assert not again.was_clean
    log = _log(again)
    assert (log.recovery_point, log.end_offset) == (10, 15)


def test_partitions_that_were_not_opened_keep_their_offsets(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    log = _log(directory)
    _append(log, 10)
    log.advance_start(Offset(4))
    directory.write_high_watermarks([(ORDERS, Offset(9))])
    _stop(directory)
    _stop(_begun(disk, path))
    again = _begun(disk, path)
    assert again.high_watermarks == {ORDERS: 9}
    assert _log(again).start_offset == 4


@pytest.mark.parametrize(
    "name", [names.HIGH_WATERMARKS, names.RECOVERY_POINTS, names.LOG_START_OFFSETS]
)
@pytest.mark.parametrize("content", [None, b"", b"\0" * 100, b"0\n5\nx"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_checkpoint_may_be_missing_or_damaged(
    name: str, content: bytes | None, clean: bool
) -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    _append(_log(directory), 10)
    directory.write_high_watermarks([(ORDERS, Offset(9))])
    if clean:
        _stop(directory)
    else:
        directory.write_recovery_points()
        directory.write_start_offsets()
        disk = disk.crash()
    if content is None:
        disk.remove(f"/data/{name}")
    else:
        disk.write_atomically(f"/data/{name}", content)
    again = _begun(disk, "/data")
    assert len(values_in(_log(again))) == 10


# -- deletion -------------------------------------------------------------------------------------


def test_a_deleted_partition_is_renamed_as_apache_kafka_does(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    _append(_log(directory), 3)
    renamed = directory.mark_for_deletion(ORDERS)
    assert renamed is not None
    name = renamed.rsplit("/", 1)[1]
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    assert len(name) == len("orders-0.") + 32 + len("-delete")
    assert directory.found_partitions() == []
    assert directory.leftovers() == [renamed]
    assert directory.mark_for_deletion(ORDERS) is None


def test_the_longest_topic_name_still_gives_a_valid_directory_name() -> None:
    partition = TopicPartition("t" * 249, PartitionIndex(12_345))
    name = names.delete_dir_name(partition, "0" * 32)
    assert len(name) == 255
    assert name.endswith(f"t-12345.{'0' * 32}-delete")


def test_reading_a_deleted_partition_raises_an_error(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    log = _log(directory)
    _append(log, 3)
    part = log.read(Offset(0), 1000, Offset(3), whole_batch=True)
    assert part is not None
    region, release = part.pin()
    directory.mark_for_deletion(ORDERS)
    assert not region.is_current()
    release()


def test_deleting_a_partition_during_its_sync_does_not_take_the_directory_offline() -> None:
    """Earlier the sync found renamed files, and that counted as a disk failure."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    log = _log(directory)
    _append(log, 3)
    job = log.sync_job()
    assert job is not None
    directory.mark_for_deletion(ORDERS)
    job.run()
    log.synced(job)
    directory.state.check()


def test_a_directory_of_an_earlier_topic_is_marked_for_deletion() -> None:
    """Hazard 21: data of a deleted topic must not reappear under a new topic with its name."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    _append(_log(directory), 10, b"old")
    disk = disk.crash()
    again = _begun(disk, "/data")
    log = _log(again, topic_id=SECOND_ID)
    assert log.end_offset == 0
    assert len(again.leftovers()) == 1
    third = _begun(disk.crash(), "/data")
    assert _log(third, topic_id=SECOND_ID).end_offset == 0


@pytest.mark.parametrize("seed", range(40))
def test_records_of_an_earlier_topic_with_a_lost_topic_id_are_set_aside(seed: int) -> None:
    """A power loss may leave records and an empty `partition.metadata` (sim seed 13664)."""
    disk = SimDisk(random=SimRandom(seed))
    directory = _begun(disk, "/data")
    _append(_log(directory), 10, b"old")
    again = _begun(disk.power_loss(), "/data")
    assert _log(again, topic_id=SECOND_ID, has_other_replicas=True).end_offset == 0


def _blank_topic_id(disk: SimDisk) -> None:
    """What a power loss or damage can leave of the file."""
    file = disk.open(f"/data/orders-0/{names.PARTITION_METADATA}")
    file.truncate(0)
    file.close()


def _unreadable(*, records: int = 10, power_loss: bool = False) -> tuple[SimDisk, LogDirectory]:
    """A partition with an unreadable topic id, in a directory without checkpoints."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    directory.clear_power_loss()
    _append(_log(directory), records)
    _sync(_log(directory))
    _blank_topic_id(disk)
    if power_loss:
        disk.open(f"/data/orders-0/{names.PARTITION_METADATA}").sync()
    disk = disk.power_loss() if power_loss else disk.crash()
    assert not disk.exists(f"/data/{names.RECOVERY_POINTS}")
    return disk, _begun(disk, "/data")


def _strays(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_dir("/data") if name.endswith("-stray")]


@pytest.mark.parametrize("power_loss", [False, True])
def test_records_with_an_unreadable_topic_id_are_kept_and_not_opened(
    power_loss: bool,
) -> None:
    """Earlier they were marked for deletion."""
    disk, directory = _unreadable(power_loss=power_loss)
    for _ in range(2):
        with pytest.raises(UnreadableTopicId, match="suwi repair partition-metadata"):
            _log(directory)
    assert directory.leftovers() == []
    assert disk.size("/data/orders-0/00000000000000000000.log") > 0
    directory.state.check()


def test_a_replica_that_is_not_suspect_does_not_start_empty_although_there_are_others() -> None:
    """The controller would consider it complete, and might make it the leader."""
    disk, directory = _unreadable()
    with pytest.raises(UnreadableTopicId):
        _log(directory, has_other_replicas=True)
    assert _strays(disk) == []


def test_a_suspect_replica_starts_empty_and_keeps_its_records_if_there_are_others() -> None:
    disk, directory = _unreadable(power_loss=True)
    assert _log(directory, has_other_replicas=True).end_offset == 0
    assert directory.leftovers() == []
    (stray,) = _strays(disk)
    assert disk.size(f"/data/{stray}/00000000000000000000.log") > 0
    assert directory.found_partitions() == [ORDERS]


def test_an_unreadable_topic_id_without_records_is_rewritten() -> None:
    _, directory = _unreadable(records=0, power_loss=True)
    assert _log(directory).end_offset == 0
    assert directory.topic_id_of(ORDERS) == FIRST_ID


def test_bytes_that_are_no_batch_do_not_count_as_records() -> None:
    disk, directory = _unreadable(power_loss=True)
    disk.overwrite("/data/orders-0/00000000000000000000.log", b"\xff" * 30, 20)
    assert _log(directory).end_offset == 0
    assert directory.topic_id_of(ORDERS) == FIRST_ID


def test_a_synced_log_whose_topic_id_is_damaged_is_kept() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    _append(_log(directory), 10)
    _sync(_log(directory))
    directory.write_recovery_points()
    _blank_topic_id(disk)
    again = _begun(disk.crash(), "/data")
    assert _log(again).end_offset == 10


@pytest.mark.parametrize("seed", range(40))
def test_synced_records_keep_their_topic_id(seed: int) -> None:
    disk = SimDisk(random=SimRandom(seed))
    directory = _begun(disk, "/data")
    _append(_log(directory), 10)
    _sync(_log(directory))
    again = _begun(disk.power_loss(), "/data")
    assert _log(again).end_offset == 10


def test_a_recreated_topic_does_not_write_into_files_of_a_topic_that_failed_to_open() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    disk.faults.fail("write", errno.ENOSPC, path=f"*{names.PARTITION_METADATA}*")
    with pytest.raises(OSError, match="No space"):
        _log(directory)
    directory.mark_for_deletion(ORDERS)
    log = _log(directory, topic_id=SECOND_ID)
    _append(log, 1)
    assert disk.size(log.active.log_path) > 0


def test_a_recreated_topic_does_not_inherit_checkpoints_after_a_crash() -> None:
    """Earlier the old start offset hid its records, and the old recovery point their damage."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    log = _log(directory)
    _append(log, 10)
    log.advance_start(Offset(8))
    _sync(log)
    directory.write_high_watermarks([(ORDERS, Offset(10))])
    directory.write_recovery_points()
    directory.write_start_offsets()
    directory.mark_for_deletion(ORDERS)
    _append(_log(directory, topic_id=SECOND_ID), 10, b"new")
    again = _begun(disk.crash(), "/data")
    assert again.high_watermarks == {}
    log = _log(again, topic_id=SECOND_ID)
    assert (log.start_offset, log.recovery_point, len(values_in(log))) == (0, 0, 10)


def test_the_topic_id_is_written_beside_the_records(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    _log(directory)
    assert disk.read_bytes(f"{path}/orders-0/partition.metadata").startswith(
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )


def test_a_directory_without_a_topic_id_is_adopted(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = _begun(disk, path)
    _append(_log(directory), 3)
    _stop(directory)
    disk.remove(f"{path}/orders-0/partition.metadata")
    again = _begun(disk, path)
    assert _log(again).end_offset == 3
    assert disk.exists(f"{path}/orders-0/partition.metadata")


@pytest.mark.parametrize(
    "name", ["orders", "orders-", "-0", "orders-x", "orders-0.abc-delete", "orders-0-future"]
)
def test_other_directory_names_are_no_partitions(name: str) -> None:
    assert names.parse_partition_dir_name(name) is None


def test_a_topic_may_have_dashes_in_its_name() -> None:
    parsed = names.parse_partition_dir_name("peter-test01-12")
    assert parsed == ("peter-test01", 12)
    assert parsed is not None
    assert names.partition_dir_name(parsed) == "peter-test01-12"


def test_synced_records_and_the_identity_survive_a_power_loss() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/srv/data")
    identity = directory.identify(NodeId(1), "cluster")
    log = _log(directory)
    _append(log, 10)
    _sync(log)
    directory.write_recovery_points()
    before = values_in(log)
    again = _begun(disk.power_loss(tear=False), "/srv/data")
    assert again.identify(NodeId(1), "other") == identity
    log = _log(again)
    assert values_in(log) == before
    assert again.leftovers() == []


def test_the_clean_shutdown_file_survives_a_power_loss() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/srv/data")
    _append(_log(directory), 10)
    _stop(directory)
    again = _directory(disk.power_loss(tear=False), "/srv/data")
    again.open()
    assert again.was_clean
    assert len(values_in(_log(again))) == 10


@pytest.mark.parametrize("records", [0, 10])
def test_a_directory_of_an_unknown_topic_is_deleted_only_if_it_has_no_records(
    records: int,
) -> None:
    disk, directory = _unreadable(records=records)
    renamed = directory.mark_unknown_for_deletion(ORDERS)
    assert directory.found_partitions() == []
    assert directory.leftovers() == ([] if records else [renamed])
    assert len(_strays(disk)) == (1 if records else 0)


def test_a_forgotten_recovery_point_does_not_confirm_the_topic_of_synced_records() -> None:
    disk = SimDisk()
    directory = _begun(disk, "/data")
    directory.clear_power_loss()
    _append(_log(directory), 10)
    _sync(_log(directory))
    directory.write_recovery_points()
    _blank_topic_id(disk)
    again = _begun(disk.crash(), "/data")
    again.forget_recovery_point(ORDERS)
    with pytest.raises(UnreadableTopicId):
        _log(again)


def test_one_write_serves_all_logs_that_wait_for_a_checkpoint() -> None:
    """A thousand logs are truncated at once when a leader changes."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    many = [TopicPartition("orders", PartitionIndex(index)) for index in range(10)]
    directory.write_high_watermarks([(partition, Offset(5)) for partition in many])
    due = [directory.lower_watermark(partition, Offset(3)) for partition in many]
    jobs = [directory.job_for(one) for (one,) in due]
    jobs[0]()
    assert all(directory.is_written(one) for (one,) in due)
    disk.faults.fail("write", errno.EIO, path=f"*{names.HIGH_WATERMARKS}*")
    for job in jobs[1:]:
        job()
    disk.faults.clear()
    directory.close(clean=False)
    assert set(_begun(disk, "/data").high_watermarks.values()) == {3}


def test_an_offset_that_is_not_below_the_checkpoint_need_not_be_written() -> None:
    directory = _begun(SimDisk(), "/data")
    log = _log(directory)
    _append(log, 10)
    run_steps(log.truncating(Offset(5)))
    assert directory.log_truncated(log) == []
    _sync(log)
    directory.write_recovery_points()
    run_steps(log.truncating(Offset(4)))
    assert [due.checkpoint for due in directory.log_truncated(log)] == [names.RECOVERY_POINTS]


def test_partitions_recreated_at_the_same_time_wait_for_one_checkpoint_write() -> None:
    """Until then a crash could give each the offsets of the deleted partition with its name."""
    disk = SimDisk()
    directory = _begun(disk, "/data")
    both = [TopicPartition("orders", PartitionIndex(index)) for index in range(2)]
    for partition in both:
        _log(directory, partition)
    directory.write_high_watermarks([(partition, Offset(5)) for partition in both])
    for partition in both:
        directory.mark_for_deletion(partition)
    first, second = (
        directory.opening(partition, SECOND_ID, TopicConfig(), None) for partition in both
    )
    job = next(first)
    assert next(second) is not TURN, "it continues only after the first has written"
    job()
    assert directory.high_watermarks == {}
    assert b"orders" not in disk.read_bytes(f"/data/{names.HIGH_WATERMARKS}")
    assert [run_steps(steps).end_offset for steps in (first, second)] == [0, 0]
