"""The state of every replica, from the brokers that have them (DescribeReplicas)."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from suwi.client.cluster import Cluster, PartitionInfo, TopicInfo
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.wire.versions import CLIENT_JSON_BYTES_MAX, ApiKey

_TIMEOUT_S = 5.0
# Limit of the topic names in one request; the rest is for quotes and commas.
_NAMES_BYTES_MAX = CLIENT_JSON_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    topic: TopicInfo
    partition: PartitionInfo
    states: dict[NodeId, dict[str, Any]]
    """Each broker's state of its replica; the fields of `replica.description.ReplicaState`."""
    unavailable: dict[NodeId, str]
    """The reasons why brokers did not describe their replica."""


async def describe_replicas(
    cluster: Cluster, topics: Sequence[TopicInfo]
) -> list[PartitionReplicas]:
    """Ask all brokers concurrently, with a timeout for each."""
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
        for names in _chunks(topics):
            fields = {"topics": names}
            told = await link.call_json(ApiKey.DESCRIBE_REPLICAS, fields, timeout_s=_TIMEOUT_S)
            states += told["replicas"]
        return states
    except ConnectionLost as error:
        return f"{error}; only Suwi's brokers can describe their replicas"
    except (OSError, BrokerError) as error:
        return reason(error)


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    """The names, split into requests of the allowed size."""
    chunk: list[str] = []
    size_bytes = 0
    for name in names:
        if chunk and size_bytes + len(name) > _NAMES_BYTES_MAX:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(name)
        size_bytes += len(name) + len('"", ')
    yield chunk


def _of_partition(
    topic: TopicInfo,
    partition: PartitionInfo,
    answers: dict[NodeId, list[dict[str, Any]] | str],
) -> PartitionReplicas:
    states: dict[NodeId, dict[str, Any]] = {}
    unavailable: dict[NodeId, str] = {}
    for node in partition.replicas:
        answer = answers[node]
        if isinstance(answer, str):
            unavailable[node] = answer
            continue
        wanted = (topic.name, partition.index)
        found = [state for state in answer if (state["topic"], state["partition"]) == wanted]
        if found:
            states[node] = found[0]
        else:
            unavailable[node] = "has no such replica yet"
    return PartitionReplicas(topic, partition, states, unavailable)
