"""Topic ids on disk: partitions that were deleted, created again, or whose id cannot be read."""

import errno

import pytest

from suwi.log import checkpoints, names
from suwi.log.log_directory import LogDirectory, UnreadableTopicId
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim import SimDisk, SimRandom
from tests.log.directory_kit import (
    FIRST_ID,
    ORDERS,
    SECOND_ID,
    Place,
    append,
    begun,
    log_of,
    stop,
    sync,
    write_high_watermarks,
    write_recovery_points,
    write_start_offsets,
)
from tests.log.kit import values_in

# -- deletion -------------------------------------------------------------------------------------


def test_a_deleted_partition_is_renamed_as_apache_kafka_does(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    append(log_of(directory), 3)
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
    name = names.renamed_dir_name(partition, "0" * 32, names.DELETE_DIR)
    assert len(name) == 255
    assert name.endswith(f"t-12345.{'0' * 32}-delete")


def test_reading_a_deleted_partition_raises_an_error(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    log = log_of(directory)
    append(log, 3)
    part = log.read(Offset(0), 1000, Offset(3), whole_batch=True)
    assert part is not None
    region, release = part.pin()
    directory.mark_for_deletion(ORDERS)
    assert not region.is_current()
    release()


def test_deleting_a_partition_during_its_sync_does_not_take_the_directory_offline() -> None:
    """Earlier the sync found renamed files, and that counted as a disk failure."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    log = log_of(directory)
    append(log, 3)
    job = log.durability.sync_job()
    assert job is not None
    directory.mark_for_deletion(ORDERS)
    job.run()
    log.durability.synced(job)
    directory.state.check()


def test_a_directory_of_an_earlier_topic_is_marked_for_deletion() -> None:
    """Hazard 21: data of a deleted topic must not reappear under a new topic with its name."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    append(log_of(directory), 10, b"old")
    disk = disk.crash()
    again = begun(disk, "/data")
    log = log_of(again, topic_id=SECOND_ID)
    assert log.end_offset == 0
    assert len(again.leftovers()) == 1
    third = begun(disk.crash(), "/data")
    assert log_of(third, topic_id=SECOND_ID).end_offset == 0


@pytest.mark.parametrize("seed", range(40))
def test_records_of_an_earlier_topic_with_a_lost_topic_id_are_set_aside(seed: int) -> None:
    """A power loss may leave records and an empty `partition.metadata` (sim seed 13664)."""
    disk = SimDisk(random=SimRandom(seed))
    directory = begun(disk, "/data")
    append(log_of(directory), 10, b"old")
    again = begun(disk.power_loss(), "/data")
    assert log_of(again, topic_id=SECOND_ID, has_other_replicas=True).end_offset == 0


def _blank_topic_id(disk: SimDisk) -> None:
    """What a power loss or damage can leave of the file."""
    file = disk.open(f"/data/orders-0/{names.PARTITION_METADATA}")
    file.truncate(0)
    file.close()


def _unreadable(*, records: int = 10, power_loss: bool = False) -> tuple[SimDisk, LogDirectory]:
    """A partition with an unreadable topic id, in a directory whose checkpoints say nothing."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    directory.clear_power_loss()
    append(log_of(directory), records)
    sync(log_of(directory))
    _blank_topic_id(disk)
    if power_loss:
        disk.open(f"/data/orders-0/{names.PARTITION_METADATA}").sync()
    disk = disk.power_loss() if power_loss else disk.crash()
    assert not checkpoints.read_offsets(disk, f"/data/{names.RECOVERY_POINTS}")
    return disk, begun(disk, "/data")


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
            log_of(directory)
    assert directory.leftovers() == []
    assert disk.size("/data/orders-0/00000000000000000000.log") > 0
    directory.state.check()


def test_a_replica_that_is_not_suspect_does_not_start_empty_although_there_are_others() -> None:
    """The controller would consider it complete, and might make it the leader."""
    disk, directory = _unreadable()
    with pytest.raises(UnreadableTopicId):
        log_of(directory, has_other_replicas=True)
    assert _strays(disk) == []


@pytest.mark.parametrize("is_out_of_sync", [False, True])
def test_a_suspect_replica_starts_empty_and_keeps_its_records_if_there_are_others(
    is_out_of_sync: bool,
) -> None:
    disk, directory = _unreadable(power_loss=not is_out_of_sync)
    log = log_of(directory, has_other_replicas=True, is_out_of_sync=is_out_of_sync)
    assert log.end_offset == 0
    assert directory.leftovers() == []
    (stray,) = _strays(disk)
    assert disk.size(f"/data/{stray}/00000000000000000000.log") > 0
    assert directory.found_partitions() == [ORDERS]


def test_an_unreadable_topic_id_without_records_is_rewritten() -> None:
    _, directory = _unreadable(records=0, power_loss=True)
    assert log_of(directory).end_offset == 0
    assert directory.topic_id_of(ORDERS) == FIRST_ID


def test_bytes_that_are_no_batch_do_not_count_as_records() -> None:
    disk, directory = _unreadable(power_loss=True)
    disk.overwrite("/data/orders-0/00000000000000000000.log", b"\xff" * 30, 20)
    assert log_of(directory).end_offset == 0
    assert directory.topic_id_of(ORDERS) == FIRST_ID


def test_a_synced_log_whose_topic_id_is_damaged_is_kept() -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    append(log_of(directory), 10)
    sync(log_of(directory))
    write_recovery_points(directory)
    _blank_topic_id(disk)
    again = begun(disk.crash(), "/data")
    assert log_of(again).end_offset == 10


@pytest.mark.parametrize("seed", range(40))
def test_synced_records_keep_their_topic_id(seed: int) -> None:
    disk = SimDisk(random=SimRandom(seed))
    directory = begun(disk, "/data")
    append(log_of(directory), 10)
    sync(log_of(directory))
    again = begun(disk.power_loss(), "/data")
    assert log_of(again).end_offset == 10


def test_a_recreated_topic_does_not_write_into_files_of_a_topic_that_failed_to_open() -> None:
    disk = SimDisk()
    directory = begun(disk, "/data")
    disk.faults.fail("write", errno.ENOSPC, path=f"*{names.PARTITION_METADATA}*")
    with pytest.raises(OSError, match="No space"):
        log_of(directory)
    directory.mark_for_deletion(ORDERS)
    log = log_of(directory, topic_id=SECOND_ID)
    append(log, 1)
    assert disk.size(log.active.log_path) > 0


def test_a_recreated_topic_does_not_inherit_checkpoints_after_a_crash() -> None:
    """Earlier the old start offset hid its records, and the old recovery point their damage."""
    disk = SimDisk()
    directory = begun(disk, "/data")
    log = log_of(directory)
    append(log, 10)
    log.advance_start(Offset(8))
    sync(log)
    write_high_watermarks(directory, [(ORDERS, Offset(10))])
    write_recovery_points(directory)
    write_start_offsets(directory)
    directory.mark_for_deletion(ORDERS)
    append(log_of(directory, topic_id=SECOND_ID), 10, b"new")
    again = begun(disk.crash(), "/data")
    assert again.checkpoints.high_watermarks == {}
    log = log_of(again, topic_id=SECOND_ID)
    assert (log.start_offset, log.recovery_point, len(values_in(log))) == (0, 0, 10)


def test_the_topic_id_is_written_beside_the_records(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    log_of(directory)
    assert disk.read_bytes(f"{path}/orders-0/partition.metadata").startswith(
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )


def test_a_directory_without_a_topic_id_is_adopted(disk_and_dir: Place) -> None:
    disk, path = disk_and_dir
    directory = begun(disk, path)
    append(log_of(directory), 3)
    stop(directory)
    disk.remove(f"{path}/orders-0/partition.metadata")
    again = begun(disk, path)
    assert log_of(again).end_offset == 3
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
    directory = begun(disk, "/data")
    directory.clear_power_loss()
    append(log_of(directory), 10)
    sync(log_of(directory))
    write_recovery_points(directory)
    _blank_topic_id(disk)
    again = begun(disk.crash(), "/data")
    again.checkpoints.recovery_points.pop(ORDERS, None)
    with pytest.raises(UnreadableTopicId):
        log_of(again)
