"""The state of every replica, as the brokers that have them tell it (DescribeReplicas)."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason
from suwi.client.topology import PartitionInfo, TopicInfo
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.wire.versions import CLIENT_JSON_BYTES_MAX, ApiKey

_VERSION = 0
_ANSWER_S = 5.0
# Of topic names in one request; the rest is quotes and commas.
_NAMES_BYTES_MAX = CLIENT_JSON_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    topic: TopicInfo
    partition: PartitionInfo
    states: dict[NodeId, dict[str, Any]]
    """What each broker says of its replica; the fields of `replica.description.ReplicaState`."""
    silent: dict[NodeId, str]
    """Why a broker has said nothing."""


async def describe_replicas(
    cluster: Cluster, topics: Sequence[TopicInfo]
) -> list[PartitionReplicas]:
    """Ask all brokers at once; one that does not answer holds up nobody for long."""
    names = [topic.name for topic in topics]
    nodes = sorted({n for t in topics for p in t.partitions for n in p.replicas})
    answers = dict(
        zip(nodes, await asyncio.gather(*(_ask(cluster, n, names) for n in nodes)), strict=True)
    )
    return [
        _of_partition(topic, partition, answers)
        for topic in topics
        for partition in topic.partitions
    ]


async def _ask(cluster: Cluster, node: NodeId, topics: Sequence[str]) -> list[dict[str, Any]] | str:
    states: list[dict[str, Any]] = []
    try:
        link = await cluster.link(node)
        for names in _portions(topics):
            body = json.dumps({"topics": names}).encode()
            answer = await link.send(
                ApiKey.DESCRIBE_REPLICAS, _VERSION, [body], timeout_s=_ANSWER_S
            )
            states += json.loads(bytes(answer))["replicas"]
        return states
    except ConnectionLost as error:
        return f"{error}; only Suwi's brokers tell of their replicas"
    except (OSError, BrokerError) as error:
        return reason(error)


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    """As many at a time as a request may name."""
    portion: list[str] = []
    size_bytes = 0
    for name in names:
        if portion and size_bytes + len(name) > _NAMES_BYTES_MAX:
            yield portion
            portion, size_bytes = [], 0
        portion.append(name)
        size_bytes += len(name) + len('"", ')
    yield portion


def _of_partition(
    topic: TopicInfo,
    partition: PartitionInfo,
    answers: dict[NodeId, list[dict[str, Any]] | str],
) -> PartitionReplicas:
    states: dict[NodeId, dict[str, Any]] = {}
    silent: dict[NodeId, str] = {}
    for node in partition.replicas:
        answer = answers[node]
        if isinstance(answer, str):
            silent[node] = answer
            continue
        wanted = (topic.name, partition.index)
        found = [state for state in answer if (state["topic"], state["partition"]) == wanted]
        if found:
            states[node] = found[0]
        else:
            silent[node] = "has no such replica yet"
    return PartitionReplicas(topic, partition, states, silent)
