"""Suwi's own APIs, which other brokers do not know (ADR 10): one broker is asked, or all are.

Those with few fields are here: DescribeTopicStats, DescribeAuditLog, WatchPartition.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.wire.versions import ApiKey

_TIMEOUT_S = 5.0
_NOT_SUWIS = "it closed the connection: it is not Suwi's, or of an older version"


async def ask_broker(
    cluster: Cluster, node: NodeId, api: ApiKey, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises OSError, of those ConnectionLost if the broker is not Suwi's, and BrokerError."""
    link = await cluster.own_link(node)
    try:
        return dict(await link.call_json(api, fields, timeout_s=_TIMEOUT_S))
    except ConnectionLost as error:
        if link.is_closed_here:  # It did not respond in time to this request or to an earlier one.
            raise ConnectionAbortedError(str(error)) from None
        raise


async def ask_brokers(
    cluster: Cluster, api: ApiKey, fields: Mapping[str, Any]
) -> dict[NodeId, dict[str, Any] | OSError | BrokerError]:
    """What each broker tells, or why it does not; all are asked at once.

    Raises OSError if no broker is known and none can be reached.
    """

    async def ask(node: NodeId) -> dict[str, Any] | OSError | BrokerError:
        try:
            return await ask_broker(cluster, node, api, fields)
        except (OSError, BrokerError) as error:
            return error

    if not cluster.brokers:
        await cluster.refresh([])
    nodes = sorted(cluster.brokers)
    return dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))


def why_silent(error: OSError | BrokerError) -> str:
    """Why a broker does not tell it."""
    return _NOT_SUWIS if isinstance(error, ConnectionLost) else reason(error)


async def bytes_in_by_topic(cluster: Cluster, node: NodeId) -> dict[str, int]:
    """What a broker has appended as a leader since it started, without topics that have nothing.

    Raises OSError, of those ConnectionLost if the broker is not Suwi's, and BrokerError.
    """
    told = await ask_broker(cluster, node, ApiKey.DESCRIBE_TOPIC_STATS, {})
    return {topic["topic"]: topic["bytes_in"] for topic in told["topics"]}


class AuditLines(NamedTuple):
    """Of one broker."""

    path: str | None
    """The file on that broker's machine; None if it has no audit log."""
    problem: str | None
    """Why the lines cannot be read."""
    lines: Sequence[Mapping[str, Any]]
    """The newest first."""


async def newest_audit_lines(cluster: Cluster) -> dict[NodeId, AuditLines | OSError | BrokerError]:
    """Of each broker, at most 200; or why it does not tell them."""
    answers = await ask_brokers(cluster, ApiKey.DESCRIBE_AUDIT_LOG, {})
    return {
        node: AuditLines(told["path"], told["problem"], told["lines"])
        if isinstance(told, dict)
        else told
        for node, told in answers.items()
    }


class Watched(NamedTuple):
    """What happens in one partition, as a broker that has a replica notes it (WatchPartition)."""

    state: Mapping[str, Any] | None
    """Its replica, with the fields of `replica.description.ReplicaState` and a few more; None if it
    has none."""
    waiting: Sequence[Mapping[str, Any]]
    """Clients that wait for answers to what they sent to it, and when their requests time out."""
    events: Sequence[Mapping[str, Any]]
    """Fetches, produces and truncations of this replica, in order: the fields of events of the
    lab, and how long ago each began."""
    last: int
    is_complete: bool
    """False: there was no room for some events."""
    history: Sequence[Mapping[str, Any]]
    """Elections and changes of the in-sync set, in order, as this broker has seen them."""
    history_last: int
    controller: tuple[int, int | None]
    """Its epoch, and its id if there is one now."""
    metadata: int
    """The number of the newest change of the cluster's metadata that the broker knows."""


class PartitionWatch:
    """Keeps one broker's watch alive: it ends 5 s after the last `read`."""

    def __init__(self, partition: TopicPartition) -> None:
        self._asked: dict[str, Any] = partition._asdict()

    async def read(self, link: VersionedConnection) -> Watched:
        """What has happened since the last call; first what the broker has kept. `link`: one of the
        caller's own, because a broker that is not Suwi's closes it.

        Raises OSError, of those ConnectionLost if the broker is not Suwi's, and BrokerError.
        """
        told = await link.call_json(ApiKey.WATCH_PARTITION, self._asked, timeout_s=_TIMEOUT_S)
        watched = Watched(**{name: told[name] for name in Watched._fields})
        self._asked |= {"after": watched.last, "history_after": watched.history_last}
        return watched
