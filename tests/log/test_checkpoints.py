"""The checkpoint files, exactly as Apache Kafka writes them."""

import errno
from contextlib import suppress
from uuid import UUID

import pytest

from suwi.env import Disk
from suwi.log import checkpoints
from suwi.model.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.sim import Revoked, SimDisk, SimRandom

Place = tuple[Disk, str]


def _partition(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def _written(content: bytes) -> tuple[SimDisk, str]:
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.write_atomically("/d/x", content)
    return disk, "/d/x"


def test_offsets_are_a_version_a_count_and_a_line_for_each_partition(disk_and_dir: Place) -> None:
    disk, directory = disk_and_dir
    path = f"{directory}/replication-offset-checkpoint"
    offsets = {_partition("peter-test01", 0): Offset(6), _partition("a", 12): Offset(2**40)}
    checkpoints.write_offsets(disk, path, offsets)
    assert disk.read_bytes(path) == b"0\n2\npeter-test01 0 6\na 12 1099511627776\n"
    assert checkpoints.read_offsets(disk, path) == offsets


def test_a_half_written_epoch_checkpoint_reads_as_damaged() -> None:
    """In whatever call the process is killed, and however much of it was done: the file reads as
    before, as after, or as None. For None the epochs are rebuilt from the log."""
    old = [(LeaderEpoch(3), Offset(10)), (LeaderEpoch(5), Offset(30))]
    for new in ([(LeaderEpoch(3), Offset(10)), (LeaderEpoch(7), Offset(41))], old[:1], old * 20):
        for calls in range(10):
            for seed in range(10):
                disk = SimDisk(random=SimRandom(seed))
                disk.make_dirs("/d")
                checkpoints.write_epochs(disk, "/d/x", old)
                disk.faults.crash_after(calls)
                with suppress(Revoked):
                    checkpoints.write_epochs(disk, "/d/x", new)
                found = checkpoints.read_epochs(disk.crash(), "/d/x")
                assert found in (old, new, None)


def test_epochs_are_written_without_a_rename() -> None:
    """Thousands are written when a broker takes over leadership, and a rename may take long."""
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.faults.fail("rename", errno.EIO)
    epochs = [(LeaderEpoch(3), Offset(10))]
    checkpoints.write_epochs(disk, "/d/x", epochs)
    checkpoints.write_epochs(disk, "/d/x", epochs)
    assert checkpoints.read_epochs(disk, "/d/x") == epochs


def test_an_empty_checkpoint_is_not_a_missing_one(disk_and_dir: Place) -> None:
    disk, directory = disk_and_dir
    checkpoints.write_offsets(disk, f"{directory}/x", {})
    assert disk.read_bytes(f"{directory}/x") == b"0\n0\n"
    assert checkpoints.read_offsets(disk, f"{directory}/x") == {}
    assert checkpoints.read_offsets(disk, f"{directory}/missing") is None


def test_epochs_are_a_line_each(disk_and_dir: Place) -> None:
    disk, directory = disk_and_dir
    epochs = [(LeaderEpoch(12), Offset(13)), (LeaderEpoch(13), Offset(16))]
    checkpoints.write_epochs(disk, f"{directory}/leader-epoch-checkpoint", epochs)
    assert disk.read_bytes(f"{directory}/leader-epoch-checkpoint") == b"0\n2\n12 13\n13 16\n"
    assert checkpoints.read_epochs(disk, f"{directory}/leader-epoch-checkpoint") == epochs


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\na 0 1\nb 0 2\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 x\n",
        b"0\n1\n\xff\xfe 0 1\n",
        b"\0" * 512,
        b"0\n1\na 0 12",
    ],
)
def test_a_damaged_checkpoint_reads_as_none(content: bytes) -> None:
    disk, path = _written(content)
    assert checkpoints.read_offsets(disk, path) is None


def test_an_incomplete_number_is_not_read() -> None:
    """`7 100` truncated after its first digit would be a wrong start offset of the epoch."""
    whole = b"0\n2\n6 0\n7 100\n"
    for size in range(len(whole)):
        disk, path = _written(whole[:size])
        assert checkpoints.read_epochs(disk, path) is None


def test_the_topic_id_is_22_characters_of_base_64(disk_and_dir: Place) -> None:
    disk, directory = disk_and_dir
    topic_id = TopicId(UUID("6a3ff1a4-55a9-4ad3-a8b1-fffbfe7a0e3c"))
    checkpoints.write_topic_id(disk, f"{directory}/partition.metadata", topic_id)
    content = disk.read_bytes(f"{directory}/partition.metadata")
    assert content == b"version: 0\ntopic_id: aj_xpFWpStOosf_7_noOPA"
    assert checkpoints.read_topic_id(disk, f"{directory}/partition.metadata") == topic_id


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\n", b"version: 0\ntopic_id: abc", b"topic_id: \xff\xff", b"\0"]
)
def test_a_damaged_topic_id_reads_as_none(content: bytes) -> None:
    disk, path = _written(content)
    assert checkpoints.read_topic_id(disk, path) is None
