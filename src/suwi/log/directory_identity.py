"""The identity of a data directory: `meta.properties`."""

from typing import NamedTuple
from uuid import UUID

from suwi.env import Disk
from suwi.log import checkpoints
from suwi.model.ids import NodeId


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
    identity = Identity(cluster_id, node_id, checkpoints.topic_id_text(directory_id))
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
