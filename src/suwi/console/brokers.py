"""The brokers of a cluster; one broker, and what its log directories hold."""

from collections.abc import Sequence
from typing import NamedTuple

from suwi.admin.cluster_health import HealthCriteria, read_health
from suwi.admin.failure import Failure
from suwi.client.admin import Admin, DirectoryReplica, LogDirectory
from suwi.client.cluster_status import BrokerStatus
from suwi.client.errors import reason
from suwi.client.zookeeper_servers import ServerStatus
from suwi.console.clusters import TIMEOUT_S, ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId

_WITHOUT_GROUPS = HealthCriteria(lag_min=None, timeout_s=TIMEOUT_S)


class Brokers(NamedTuple):
    brokers: Sequence[BrokerStatus]
    ensemble: Sequence[ServerStatus]
    unknown: Sequence[str]
    command: str


class DirectoryRow(NamedTuple):
    directory: str
    is_offline: bool
    total_bytes: int | None
    free_bytes: int | None
    replicas: int
    size_bytes: int
    """Of the replicas in it."""


class ReplicaRow(NamedTuple):
    directory: str
    replica: DirectoryReplica


class Broker(NamedTuple):
    broker: BrokerStatus
    directories: Sequence[DirectoryRow]
    part: Part
    replicas: Sequence[ReplicaRow]
    """The largest first."""
    problem: str | None
    """Why its log directories are not known."""
    command: str


async def read_brokers(shown: ShownCluster, _: Query) -> Brokers:
    status = await read_health(shown.client, shown.clock, _WITHOUT_GROUPS)
    return Brokers(status.brokers, status.ensemble, status.unknown, shown.command("status"))


async def read_broker(shown: ShownCluster, query: Query) -> Broker:
    node = query.number("node", 0)
    status = await read_health(shown.client, shown.clock, _WITHOUT_GROUPS)
    broker = next((each for each in status.brokers if each.node == node), None)
    if broker is None:
        raise Failure(f"there is no broker {node}")
    found: Sequence[LogDirectory] = ()
    problem = None
    try:
        found = await Admin(shown.client).log_directories(NodeId(node))
    except (BrokerError, OSError) as error:
        problem = reason(error)
    replicas = [ReplicaRow(each.path, replica) for each in found for replica in each.replicas]
    replicas.sort(key=lambda row: (-row.replica.size_bytes, row.replica))
    part, rows = cut(replicas, query, lambda row: f"{row.replica.topic}-{row.replica.partition}")
    return Broker(
        broker,
        [
            DirectoryRow(
                each.path,
                each.is_offline,
                each.total_bytes,
                each.free_bytes,
                len(each.replicas),
                sum(replica.size_bytes for replica in each.replicas),
            )
            for each in found
        ],
        part,
        rows,
        problem,
        shown.command("status", options=["--node", node]),
    )
