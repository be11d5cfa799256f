"""A data directory: its identity, its lock, and its state across restarts."""

import errno
import json

import pytest

from suwi.log import names
from suwi.log.checkpoints import ForeignDirectory
from suwi.log.log_directory import DirectoryInUse
from suwi.log.sliced_work import TURN, run_steps
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.sim import SimDisk
from tests.log.directory_kit import (
    ORDERS,
    SECOND_ID,
    Place,
    append,
    begun,
    directory_at,
    log_of,
    stop,
    sync,
    write_high_watermarks,
    write_recovery_points,
    write_start_offsets,
)
from tests.log.kit import values_in

# -- identity -------------------------------------------------------------------------------------


def test_a_directory_has_one_owner_at_a_time(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    first = begun(disk, path)
    second = directory_at(disk, path)
    with pytest.raises(DirectoryInUse, match="in use by another broker"):
        second.open()
    first.close(clean=False)
    second.open()
    second.close(clean=False)


def test_a_dead_process_holds_no_lock() -> None:
    disk = SimDisk()
    begun(disk, "/data")
    begun(disk.crash(), "/data")


def test_a_missing_directory_is_created(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    begun(disk, f"{path}/a/b").close(clean=True)
    assert disk.exists(f"{path}/a/b/.kafka_cleanshutdown")


def test_a_new_directory_gets_the_brokers_identity_and_keeps_it(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    identity = directory.identify(NodeId(3), "cluster-1")
    assert (identity.cluster_id, identity.node_id) == ("cluster-1", 3)
    assert len(identity.directory_id) == 22
    lines = disk.read_bytes(f"{path}/meta.properties").decode().splitlines()
    assert {"version=1", "cluster.id=cluster-1", "node.id=3"} < set(lines)
    assert f"directory.id={identity.directory_id}" in lines
    assert directory.identify(NodeId(3), "other") == identity


def test_another_brokers_directory_is_refused(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    directory.identify(NodeId(3), "cluster-1")
    with pytest.raises(ForeignDirectory, match="broker 3"):
        directory.identify(NodeId(4), "cluster-1")


def test_an_older_apache_kafka_directory_is_accepted(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    text = "#\n#Mon Jan 01 00:00:00 UTC 2024\nbroker.id=1\nversion=0\ncluster.id=abc\n"
    disk.write_atomically(f"{path}/meta.properties", text.encode())
    assert directory.identify(NodeId(1), "").cluster_id == "abc"


@pytest.mark.parametrize("text", ["", "cluster.id=x\n", "node.id=one\ncluster.id=x\n", "\0\0\0"])
def test_a_damaged_identity_is_refused(disk_and_dir: Place, text: str) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    disk.write_atomically(f"{path}/meta.properties", text.encode())
    with pytest.raises(ForeignDirectory, match="damaged"):
        directory.identify(NodeId(1), "")


# -- shutdown -------------------------------------------------------------------------------------


def test_a_clean_shutdown_is_marked_until_the_directory_is_used_again(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    mark = f"{path}/{names.CLEAN_SHUTDOWN}"
    directory = begun(disk, path)
    assert not disk.exists(mark)
    stop(directory)
    assert json.loads(disk.read_bytes(mark))["version"] == 0
    again = directory_at(disk, path)
    again.open()
    assert again.was_clean
    assert disk.exists(mark)
    again.begin()
    assert not disk.exists(mark)
    again.close(clean=False)
    third = directory_at(disk, path)
    third.open()
    assert not third.was_clean


def test_a_directory_that_went_offline_is_not_marked_clean() -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    directory.state.take_offline(OSError(errno.EIO, "broken"))
    directory.close(clean=True)
    assert not disk.exists("/data/.kafka_cleanshutdown")


@pytest.mark.parametrize("path", ["*recovery-point*", "*log-start-offset*", "*cleanshutdown*"])
def test_a_shutdown_whose_checkpoints_cannot_be_written_is_not_clean(path: str) -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    append(log_of(directory), 5)
    for log in directory.opened_logs():
        log.finish()
        sync(log)
    disk.faults.fail("write", errno.ENOSPC, path=path)
    directory.close(clean=True)
    assert not disk.exists("/data/.kafka_cleanshutdown")
    again = begun(disk, "/data")
    assert not again.was_clean
    assert len(values_in(log_of(again))) == 5


def test_logs_are_the_same_after_a_restart(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    log = log_of(directory)
    append(log, 10)
    log.advance_start(Offset(4))
    before = values_in(log)
    write_high_watermarks(directory, [(ORDERS, Offset(9))])
    stop(directory)
    again = begun(disk, path)
    assert again.found_partitions() == [ORDERS]
    assert again.checkpoints.high_watermarks == {ORDERS: 9}
    assert again.opened_logs() == []
    log = log_of(again)
    assert log is log_of(again)
    assert values_in(log) == before
    assert (log.start_offset, log.recovery_point) == (4, 10)


def test_the_checkpoints_have_apache_kafkas_names_and_form(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    log = log_of(directory)
    append(log, 10)
    log.advance_start(Offset(4))
    write_high_watermarks(directory, [(ORDERS, Offset(9))])
    stop(directory)
    for name, offset in [
        ("replication-offset-checkpoint", 9),
        ("recovery-point-offset-checkpoint", 10),
        ("log-start-offset-checkpoint", 4),
    ]:
        assert disk.read_bytes(f"{path}/{name}") == f"0\n1\norders 0 {offset}\n".encode()


def test_recovery_starts_at_the_checkpointed_recovery_point() -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    log = log_of(directory)
    append(log, 10)
    sync(log)
    write_recovery_points(directory)
    append(log, 5)
    again = begun(disk.crash(), "/data")
    assert not again.was_clean
    log = log_of(again)
    assert (log.recovery_point, log.end_offset) == (10, 15)


def test_partitions_that_were_not_opened_keep_their_offsets(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    log = log_of(directory)
    append(log, 10)
    log.advance_start(Offset(4))
    write_high_watermarks(directory, [(ORDERS, Offset(9))])
    stop(directory)
    stop(begun(disk, path))
    again = begun(disk, path)
    assert again.checkpoints.high_watermarks == {ORDERS: 9}
    assert log_of(again).start_offset == 4


@pytest.mark.parametrize(
    "name", [names.HIGH_WATERMARKS, names.RECOVERY_POINTS, names.LOG_START_OFFSETS]
)
@pytest.mark.parametrize("content", [None, b"", b"\0" * 100, b"0\n5\nx"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_checkpoint_may_be_missing_or_damaged(
    name: str, content: bytes | None, clean: bool
) -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    append(log_of(directory), 10)
    write_high_watermarks(directory, [(ORDERS, Offset(9))])
    if clean:
        stop(directory)
    else:
        write_recovery_points(directory)
        write_start_offsets(directory)
        disk = disk.crash()
    if content is None:
        disk.remove(f"/data/{name}")
    else:
        disk.write_atomically(f"/data/{name}", content)
    again = begun(disk, "/data")
    assert len(values_in(log_of(again))) == 10


def test_one_write_serves_all_logs_that_wait_for_a_checkpoint() -> None:
    """A thousand logs are truncated at once when a leader changes."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    many = [TopicPartition("orders", PartitionIndex(index)) for index in range(10)]
    write_high_watermarks(directory, [(partition, Offset(5)) for partition in many])
    due = [directory.checkpoints.lower_watermark(partition, Offset(3)) for partition in many]
    jobs = [directory.checkpoints.job_for(one.checkpoint) for (one,) in due]
    jobs[0]()
    assert all(directory.checkpoints.is_written(one) for (one,) in due)
    disk.faults.fail("write", errno.EIO, path=f"*{names.HIGH_WATERMARKS}*")
    for job in jobs[1:]:
        job()
    disk.faults.clear()
    directory.close(clean=False)
    assert set(begun(disk, "/data").checkpoints.high_watermarks.values()) == {3}


def test_an_offset_that_is_not_below_the_checkpoint_need_not_be_written() -> None:
    directory = begun(SimDisk(), "/data")
    log = log_of(directory)
    append(log, 10)
    run_steps(log.truncating(Offset(5)))
    assert directory.checkpoints.log_truncated(log) == []
    sync(log)
    write_recovery_points(directory)
    run_steps(log.truncating(Offset(4)))
    assert [due.checkpoint for due in directory.checkpoints.log_truncated(log)] == [
        names.RECOVERY_POINTS
    ]


def test_partitions_recreated_at_the_same_time_wait_for_one_checkpoint_write() -> None:
    """Until then a crash could give each the offsets of the deleted partition with its name."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    both = [TopicPartition("orders", PartitionIndex(index)) for index in range(2)]
    for partition in both:
        log_of(directory, partition)
    write_high_watermarks(directory, [(partition, Offset(5)) for partition in both])
    for partition in both:
        directory.mark_for_deletion(partition)
    first, second = (
        directory.opening(partition, SECOND_ID, TopicConfig(), None) for partition in both
    )
    job = next(first)
    assert next(second) is not TURN, "it continues only after the first has written"
    job()
    assert directory.checkpoints.high_watermarks == {}
    assert b"orders" not in disk.read_bytes(f"/data/{names.HIGH_WATERMARKS}")
    assert [run_steps(steps).end_offset for steps in (first, second)] == [0, 0]


def test_synced_records_and_the_identity_survive_a_power_loss() -> None:
    disk = SimDisk()
    directory = begun(disk, "/srv/data")
    identity = directory.identify(NodeId(1), "cluster")
    log = log_of(directory)
    append(log, 10)
    sync(log)
    write_recovery_points(directory)
    before = values_in(log)
    again = begun(disk.power_loss(tear=False), "/srv/data")
    assert again.identify(NodeId(1), "other") == identity
    log = log_of(again)
    assert values_in(log) == before
    assert again.leftovers() == []


def test_the_clean_shutdown_file_survives_a_power_loss() -> None:
    disk = SimDisk()
    directory = begun(disk, "/srv/data")
    append(log_of(directory), 10)
    stop(directory)
    again = directory_at(disk.power_loss(tear=False), "/srv/data")
    again.open()
    assert again.was_clean
    assert len(values_in(log_of(again))) == 10
