"""The small text files of a data directory: checkpoints, `partition.metadata`, `meta.properties`.

A checkpoint has a version, a count and a line per entry. A missing or damaged one reads as None:
its contents can be recomputed, or are not needed for safety.
"""

import base64
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import NamedTuple, TypeVar
from uuid import UUID

from suwi.env import Disk, File
from suwi.log.file_cache import write_all
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition

T = TypeVar("T")

_VERSION = "0"
_IN_PLACE_BYTES_MAX = 512
"""A disk sector: after a power loss it is entirely old or entirely new, never mixed."""


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    """One line per partition: `orders 0 42`."""
    lines = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()]
    disk.write_atomically(path, _encode(lines))


def write_no_offsets(disk: Disk, path: str) -> None:
    disk.write_atomically(path, _encode([]), sync=False)


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, Offset] | None:
    def parse(rows: list[list[str]]) -> dict[TopicPartition, Offset]:
        return {
            TopicPartition(topic, PartitionIndex(int(partition))): Offset(int(offset))
            for topic, partition, offset in rows
        }

    return _read(disk, path, parse)


def write_epochs(disk: Disk, path: str, epochs: list[tuple[LeaderEpoch, Offset]]) -> None:
    """One line per leader epoch with its start offset: `12 13`. Synced together with the log.

    A small file is written in place. A broker that takes over leadership writes thousands, and a
    rename over an existing file takes ext4 milliseconds, because it flushes the new file first
    (`auto_da_alloc`).
    """
    data = _encode([f"{epoch} {start}" for epoch, start in epochs])
    with closing(disk.open(path, create=True)) as file:
        if max(file.size(), len(data)) <= _IN_PLACE_BYTES_MAX:
            _write_in_place(file, data)
            return
    disk.write_atomically(path, data, sync=False)


def _write_in_place(file: File, data: bytes) -> None:
    """A crash during the write leaves a file that reads as damaged: without a version, or with more
    lines than it says. A full disk leaves the old content."""
    old_bytes = file.size()
    if old_bytes < len(data):
        try:
            write_all(file, data[old_bytes:], old_bytes)
        except OSError:
            file.truncate(old_bytes)
            raise
    file.pwrite(b"-", 0)
    write_all(file, data[1:], 1)
    if file.size() > len(data):
        file.truncate(len(data))
    file.pwrite(data[:1], 0)


def read_epochs(disk: Disk, path: str) -> list[tuple[LeaderEpoch, Offset]] | None:
    def parse(rows: list[list[str]]) -> list[tuple[LeaderEpoch, Offset]]:
        return [(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in rows]

    return _read(disk, path, parse)


def write_topic_id(disk: Disk, path: str, topic_id: TopicId, *, sync: bool = False) -> None:
    """Write `partition.metadata`: the id of the directory's topic. Synced with the log."""
    text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
    disk.write_atomically(path, text.encode(), sync=sync)


def read_topic_id(disk: Disk, path: str) -> TopicId | None:
    if not disk.exists(path):
        return None
    for line in disk.read_bytes(path).decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return parse_topic_id(value.strip())
    return None


def parse_topic_id(text: str) -> TopicId | None:
    """Parse the output of `topic_id_text`; None if the text is no topic id."""
    try:
        return TopicId(UUID(bytes=base64.urlsafe_b64decode(f"{text}==")))
    except ValueError:
        return None


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _encode(lines: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _read(disk: Disk, path: str, parse: Callable[[list[list[str]]], T]) -> T | None:
    if not disk.exists(path):
        return None
    try:
        # Every line ends with a newline. If the last one is missing, a number may be incomplete.
        version, count, *lines, after_last = disk.read_bytes(path).decode().split("\n")
        if version != _VERSION or len(lines) != int(count) or after_last:
            return None
        return parse([line.split(" ") for line in lines])
    except ValueError:
        return None


class ForeignDirectory(Exception):
    """The directory belongs to another broker or cluster."""


class Identity(NamedTuple):
    """The contents of `meta.properties`."""

    cluster_id: str
    node_id: NodeId
    directory_id: str


def write_identity(
    disk: Disk, path: str, cluster_id: str, node_id: NodeId, directory_id: UUID
) -> Identity:
    identity = Identity(cluster_id, node_id, topic_id_text(directory_id))
    text = (
        "#\nversion=1\n"
        f"cluster.id={identity.cluster_id}\n"
        f"node.id={identity.node_id}\n"
        f"directory.id={identity.directory_id}\n"
    )
    disk.write_atomically(path, text.encode())
    return identity


def read_identity(disk: Disk, path: str) -> Identity | None:
    """None if the file does not exist. Raises ForeignDirectory if it is unreadable."""
    if not disk.exists(path):
        return None
    lines = disk.read_bytes(path).decode("utf-8", "replace").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    try:
        node_id = NodeId(int(values.get("node.id", values.get("broker.id", ""))))
        return Identity(values["cluster.id"], node_id, values.get("directory.id", ""))
    except (KeyError, ValueError):
        raise ForeignDirectory(f"{path} is damaged: it has no cluster id and node id") from None
